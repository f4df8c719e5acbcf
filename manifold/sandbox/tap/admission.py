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

    def admits(self, connect: Connect | None) -> bool:
        """Whether the client may use its names. `connect` is None if its bytes are not MQTT: admitted only without TLS."""
        if self._certificates is not None and self._rule is not None:
            identity = self._identity
            if identity is None or connect is None:
                return False
            if self._certificates.is_invalid(identity) or not self._rule(identity, connect):
                return False
        if connect is None:
            return True
        # As in EMQX, a client on MQTT 5 that asks to resume a session must name it by a client id.
        resumes_without_id = connect.version >= 5 and not connect.client_id and not connect.clean_start
        return connect.client_id not in RESERVED_CLIENT_IDS and not resumes_without_id

    def refuse(self, connect: Connect | None) -> bytes:
        """Log the refusal, and return the CONNACK for the client; empty if its bytes are not MQTT (`connect` is None)."""
        client_id, username = (connect.client_id, connect.username) if connect else (None, None)
        certificate = self._identity.name if self._identity is not None else None
        log.warning(
            "client refused: certificate, names or packet not allowed",
            client=client_id,
            username=username,
            certificate=certificate,
        )
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
