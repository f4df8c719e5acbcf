"""Client identity with TLS: the certificate's name, and the client ids and user names that it allows.

A vehicle's client id is its certificate's common name, and its user name is not a service's. A service's or publisher's user name
is its certificate's common name, and its client id begins with it. Each CONNECT is checked. One that cannot be parsed completely
is refused, because the broker might parse it differently.
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
    def of(cls, shown: dict[str, object]) -> "Identity":
        """Build from the peer certificate in ssl's format. Unless there is exactly one common name, the name is empty."""
        subject: object = shown.get("subject", ())
        names = [value for part in subject for key, value in part if key == "commonName"]  # type: ignore[attr-defined]
        not_after = ssl.cert_time_to_seconds(str(shown["notAfter"]))
        return cls(names[0] if len(names) == 1 else "", int(str(shown["serialNumber"]), 16), not_after)


Rule = Callable[[Identity, Connect], bool]


def is_vehicle(who: Identity, asked: Connect) -> bool:
    """Whether a CONNECT is allowed on the vehicles' port."""
    claims_service = is_service(asked.client_id) or (asked.username or "").startswith(SERVICE_PREFIX)
    return asked.whole and bool(who.name) and asked.client_id == who.name and not claims_service


def is_platform(who: Identity, asked: Connect) -> bool:
    """Whether a CONNECT is allowed on the port of services and publishers."""
    own = asked.client_id == who.name or asked.client_id.startswith(f"{who.name}-")
    return asked.whole and is_service(who.name) and asked.username == who.name and own


class Certificates:
    """The tap's certificate, its CA, and the revocation list; reloaded when the files change."""

    def __init__(self, folder: Path) -> None:
        """Load the files. Raises OSError or ValueError if they cannot be read."""
        self._ca, self._server, self._listed = folder / CA, folder / SERVER, folder / REVOKED
        self._stamps = self._read_stamps()
        self.context = self._newest = server_context(self._ca, self._server)
        self.context.sni_callback = self._take_newest
        self._revoked = revoked_serials(self._ca, self._listed)

    def renew(self) -> None:
        """Reload changed files for new connections; on an error, retry at the next check."""
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return
        try:
            newest = server_context(self._ca, self._server)  # a new context, because trusted CAs cannot be removed from one
            self._revoked = revoked_serials(self._ca, self._listed)
        except (OSError, ValueError) as exc:
            log.error("tap certificates cannot be read; the old ones stay in use", reason=str(exc))  # noqa: TRY400  # the reason is sufficient
            return
        self._stamps, self._newest = stamps, newest
        log.info("tap certificates reloaded", revoked=len(self._revoked))

    def _take_newest(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _of_listener: ssl.SSLContext) -> None:
        """Switch a handshake from the listener's context to the newest; called with or without a server name."""
        connection.context = self._newest

    def refuses(self, who: Identity) -> bool:
        """Whether a certificate has expired or was revoked."""
        return who.serial in self._revoked or time.time() > who.not_after

    def _read_stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(file) for file in (self._ca, self._server, self._listed))


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
