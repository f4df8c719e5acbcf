"""Decides which client may use which names, by its certificate, and refuses it as EMQX does."""

import structlog

from manifold.contracts.names import RESERVED_CLIENT_IDS
from manifold.sandbox.tap.identity import Certificates, Identity, Rule
from manifold.sandbox.tap.packets import Connect, refusal

log = structlog.get_logger(__name__)


class Admission:
    """The admission of one connection. Without certificates, in the clear, every client is who it says it is."""

    def __init__(self, rule: Rule | None = None, certificates: Certificates | None = None) -> None:
        self._rule, self._certificates = rule, certificates
        self._identity: Identity | None = None

    def identify(self, shown: dict[str, object]) -> None:
        """Note the certificate that the client has shown, as Python's ssl module describes it."""
        if self._certificates is not None:
            self._identity = Identity.of(shown)

    def admits(self, asked: Connect | None) -> bool:
        """Whether the client may use its names. Bytes that are not MQTT go to the broker only without certificates."""
        if self._certificates is not None and self._rule is not None:
            who = self._identity
            if who is None or asked is None or self._certificates.refuses(who) or not self._rule(who, asked):
                return False
        if asked is None:
            return True
        has_session_of_nobody = asked.version >= 5 and not asked.client_id and not asked.clean_start  # EMQX refuses that, too
        return asked.client_id not in RESERVED_CLIENT_IDS and not has_session_of_nobody

    def refusal(self, asked: Connect | None) -> bytes:
        """The CONNACK of a client that is not admitted; empty if its bytes are not MQTT. The broker cannot deny a client id."""
        shows = self._identity.name if self._identity is not None else None
        log.warning("client refused", client=asked.client_id if asked else None, certificate=shows)
        return b"" if asked is None else refusal(asked.version)

    def has_lapsed(self) -> bool:
        """Whether the certificate of a client that was admitted is no longer valid."""
        if self._identity is None or self._certificates is None or not self._certificates.refuses(self._identity):
            return False
        log.warning("certificate no longer good", name=self._identity.name, serial=f"{self._identity.serial:x}")
        return True
