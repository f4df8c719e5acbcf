"""Decides by certificate which client may use which names, and refuses others as EMQX does."""

import structlog

from manifold.contracts.names import RESERVED_CLIENT_IDS
from manifold.sandbox.tap.identity import Certificates, Identity, Rule
from manifold.sandbox.tap.packets import Connect, refusal

log = structlog.get_logger(__name__)


class Admission:
    """Admission of one connection. Without TLS every client is accepted as what it claims to be."""

    def __init__(self, rule: Rule | None = None, certificates: Certificates | None = None) -> None:
        self._rule, self._certificates = rule, certificates
        self._identity: Identity | None = None

    def identify(self, certificate: dict[str, object]) -> None:
        """Record the client's certificate, in the format of Python's ssl module."""
        if self._certificates is not None:
            self._identity = Identity.of(certificate)

    def admits(self, asked: Connect | None) -> bool:
        """Whether the client may use its names. Bytes that are not MQTT are only passed to the broker without TLS."""
        if self._certificates is not None and self._rule is not None:
            who = self._identity
            if who is None or asked is None or self._certificates.refuses(who) or not self._rule(who, asked):
                return False
        if asked is None:
            return True
        has_session_of_nobody = asked.version >= 5 and not asked.client_id and not asked.clean_start  # refused by EMQX, too
        return asked.client_id not in RESERVED_CLIENT_IDS and not has_session_of_nobody

    def refusal(self, asked: Connect | None) -> bytes:
        """Return the CONNACK for a refused client; empty if its bytes are not MQTT. Mosquitto itself cannot deny client ids."""
        name = self._identity.name if self._identity is not None else None
        log.warning("client refused", client=asked.client_id if asked else None, certificate=name)
        return b"" if asked is None else refusal(asked.version)

    def has_lapsed(self) -> bool:
        """Whether the certificate of an admitted client has expired or was revoked."""
        if self._identity is None or self._certificates is None or not self._certificates.refuses(self._identity):
            return False
        log.warning("certificate expired or revoked", name=self._identity.name, serial=f"{self._identity.serial:x}")
        return True
