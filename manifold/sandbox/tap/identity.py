"""The identity of a client if the tap terminates TLS: what its certificate says, and which names it may use.

The client id of a vehicle is the common name of its certificate, and it has no user name of a service. The user name of a service
or a publisher is that of its certificate, and its client id begins with it. Each CONNECT is judged by this. One that
cannot be read to its end is refused, because the broker might read it differently.
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
    """A certificate that the CA has signed."""

    name: str  # its common name
    serial: int
    not_after: float  # Unix seconds

    @classmethod
    def of(cls, shown: dict[str, object]) -> "Identity":
        """The identity in what Python's ssl module tells of a peer. Several common names, or none, are nobody's name."""
        subject: object = shown.get("subject", ())
        names = [value for part in subject for key, value in part if key == "commonName"]  # type: ignore[attr-defined]
        not_after = ssl.cert_time_to_seconds(str(shown["notAfter"]))
        return cls(names[0] if len(names) == 1 else "", int(str(shown["serialNumber"]), 16), not_after)


Rule = Callable[[Identity, Connect], bool]


def is_vehicle(who: Identity, asked: Connect) -> bool:
    """Whether a CONNECT on the vehicles' port may go on."""
    claims_service = is_service(asked.client_id) or (asked.username or "").startswith(SERVICE_PREFIX)
    return asked.whole and bool(who.name) and asked.client_id == who.name and not claims_service


def is_platform(who: Identity, asked: Connect) -> bool:
    """Whether a CONNECT on the port of services and publishers may go on."""
    own = asked.client_id == who.name or asked.client_id.startswith(f"{who.name}-")
    return asked.whole and is_service(who.name) and asked.username == who.name and own


class Certificates:
    """The tap's own certificate, its CA, and the list of what is revoked; read again when the files change."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError or ValueError where they cannot be read."""
        self._ca, self._server, self._listed = folder / CA, folder / SERVER, folder / REVOKED
        self._stamps = self._look()
        self.context = self._newest = server_context(self._ca, self._server)
        self.context.sni_callback = self._take_newest
        self._revoked = revoked_serials(self._ca, self._listed)

    def renew(self) -> None:
        """Take what has changed, for connections from now on; what cannot be read is left until the next look."""
        stamps = self._look()
        if stamps == self._stamps:
            return
        try:
            newest = server_context(self._ca, self._server)  # another: one that believes a CA cannot be made to forget it
            self._revoked = revoked_serials(self._ca, self._listed)
        except (OSError, ValueError) as exc:
            log.error("certificates cannot be read", reason=str(exc))  # noqa: TRY400  # the reason says all
            return
        self._stamps, self._newest = stamps, newest
        log.info("certificates taken", revoked=len(self._revoked))

    def _take_newest(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _of_listener: ssl.SSLContext) -> None:
        """Each handshake begins with the listener's context, and goes on with the newest; also without a server's name."""
        connection.context = self._newest

    def refuses(self, who: Identity) -> bool:
        """Whether a certificate that was good once is good no longer."""
        return who.serial in self._revoked or time.time() > who.not_after

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(file) for file in (self._ca, self._server, self._listed))


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
