"""Decides by its certificate whether a client may use its client id and user name, and refuses it as EMQX does."""

import structlog

from manifold.contracts.names import RESERVED_CLIENT_IDS
from manifold.sandbox.tap.identity import Certificates, Identity, Rule
from manifold.sandbox.tap.packets import Connect, connack_refusing_client_id

log = structlog.get_logger(__name__)


class Admission:
    """Admission of one connection. Without TLS, clients may use any names except the reserved client ids."""

    def __init__(self, rule: Rule | None = None, certificates: Certificates | None = None) -> None:
        self._rule, self._certificates = rule, certificates
        self._identity: Identity | None = None

    def identify(self, certificate: dict[str, object]) -> None:
        """Record the client's certificate, in the format of Python's ssl module."""
        if self._certificates is not None:
            self._identity = Identity.of(certificate)

    def problem_with(self, connect: Connect | None) -> str | None:
        """Return why the client is not admitted, or None if it is.

        `connect` is None if the client's bytes are not MQTT: it is then admitted only without TLS.
        """
        if self._certificates is not None and self._rule is not None:
            if connect is None:
                return "its bytes are not MQTT"
            if self._identity is None:
                return "it has no certificate"
            if self._certificates.is_invalid(self._identity):
                return "its certificate is expired or revoked"
            if not self._rule(self._identity, connect):
                return "its certificate does not allow these names"
        if connect is None:
            return None
        if connect.client_id in RESERVED_CLIENT_IDS:
            return "the client id is reserved"
        # As in EMQX, a client on MQTT 5 that asks to resume a session must name it by a client id.
        if connect.version >= 5 and not connect.client_id and not connect.clean_start:
            return "it resumes a session without a client id"
        return None

    def refuse(self, connect: Connect | None, reason: str) -> bytes:
        """Log the refusal, and return the CONNACK for the client; empty if its bytes are not MQTT (`connect` is None)."""
        client_id, username = (connect.client_id, connect.username) if connect else (None, None)
        certificate = self._identity.name if self._identity is not None else None
        log.warning("client refused", client=client_id, username=username, certificate=certificate, reason=reason)
        return b"" if connect is None else connack_refusing_client_id(connect.version)

    def has_certificate_become_invalid(self) -> bool:
        """Whether the certificate has expired or was revoked since the client was admitted. Logs the disconnection if so."""
        identity = self._identity
        if identity is None or self._certificates is None or not self._certificates.is_invalid(identity):
            return False
        log.warning(
            "client disconnected: certificate expired or revoked", certificate=identity.name, serial=f"{identity.serial:x}"
        )
        return True
