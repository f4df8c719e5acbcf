"""Client identity with TLS: the certificate's common name, and the client ids and user names that it allows.

A vehicle's client id must be its common name, and its user name must not be a service's. A service or publisher must have its
common name as its user name, and its client id must be that name, alone or followed by `-…`. A CONNECT that cannot be parsed
completely is refused, because the broker might parse it differently.
"""

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from manifold.contracts.names import SERVICE_PREFIX, is_service
from manifold.contracts.tls import CA, REVOKED, SERVER
from manifold.runtime.tls import revoked_serials, server_context
from manifold.sandbox.tap.packets import Connect

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate signed by the CA."""

    name: str  # common name
    serial: int
    not_after: float  # Unix seconds

    @classmethod
    def of(cls, certificate: dict[str, object]) -> "Identity":
        """Return the identity in a certificate, given in the format of `SSLSocket.getpeercert`.

        The name is empty if the certificate has no common name, or several.
        """
        subject: object = certificate.get("subject", ())
        names: list[str] = []
        for pairs in subject:  # type: ignore[attr-defined]
            names += [value for key, value in pairs if key == "commonName"]
        name = names[0] if len(names) == 1 else ""
        serial = int(str(certificate["serialNumber"]), 16)
        not_after = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
        return cls(name, serial, not_after)


Rule = Callable[[Identity, Connect], bool]


def is_vehicle(identity: Identity, connect: Connect) -> bool:
    """Whether a CONNECT is allowed on the vehicles' port."""
    claims_service = is_service(connect.client_id) or (connect.username or "").startswith(SERVICE_PREFIX)
    has_own_id = bool(identity.name) and connect.client_id == identity.name
    return connect.is_complete and has_own_id and not claims_service


def is_platform(identity: Identity, connect: Connect) -> bool:
    """Whether a CONNECT is allowed on the port of services and publishers."""
    has_own_id = connect.client_id == identity.name or connect.client_id.startswith(f"{identity.name}-")
    return connect.is_complete and is_service(identity.name) and connect.username == identity.name and has_own_id


class Certificates:
    """The tap's certificate, its CA, and the revocation list, which `reload_if_changed` reloads when their files have changed."""

    def __init__(self, folder: Path) -> None:
        """Load the files. Raises OSError or ValueError if they cannot be read."""
        self._ca, self._server, self._revocation_list = folder / CA, folder / SERVER, folder / REVOKED
        self._file_states = self._read_file_states()
        self.context = self._newest = server_context(self._ca, self._server)
        self.context.sni_callback = self._switch_to_newest
        self._revoked = revoked_serials(self._ca, self._revocation_list)

    def reload_if_changed(self) -> None:
        """Reload the files if they have changed: certificates apply to new connections, revocations to all.

        After an error, the next call retries.
        """
        file_states = self._read_file_states()
        if file_states == self._file_states:
            return
        try:
            newest = server_context(self._ca, self._server)  # a new context, because trusted CAs cannot be removed from one
            self._revoked = revoked_serials(self._ca, self._revocation_list)
        except (OSError, ValueError) as exc:
            folder = str(self._ca.parent)
            # The reason is sufficient without a traceback.
            log.error("tap certificates cannot be read; the old ones stay in use", folder=folder, reason=str(exc))  # noqa: TRY400
            return
        self._file_states, self._newest = file_states, newest
        log.info("tap certificates reloaded", revoked_certificates=len(self._revoked))

    def _switch_to_newest(
        self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _of_listener: ssl.SSLContext
    ) -> None:
        """Switch a handshake from the listener's context to the newest one. ssl calls this for each handshake."""
        connection.context = self._newest

    def is_invalid(self, identity: Identity) -> bool:
        """Whether a certificate has expired or was revoked."""
        return identity.serial in self._revoked or time.time() > identity.not_after

    def _read_file_states(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_file_state(file) for file in (self._ca, self._server, self._revocation_list))


def _file_state(file: Path) -> tuple[int, int, int] | None:
    """Return inode, modification time in ns, and size, at least one of which changes with the file; None if there is no file."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
