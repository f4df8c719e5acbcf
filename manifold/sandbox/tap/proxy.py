"""All connections through the tap, which pause and close together."""

import asyncio
from collections.abc import Callable

from manifold.sandbox.tap.connection import EVENTS_WAIT, Dial, ProxiedConnection
from manifold.sandbox.tap.identity import Certificates, Rule
from manifold.sandbox.tap.sessions import Sessions


class Proxy:
    """All connections through the tap."""

    def __init__(self, sessions: Sessions, dial: Dial) -> None:
        self.sessions, self.dial = sessions, dial
        self.loop = asyncio.get_running_loop()
        self.connections: set[ProxiedConnection] = set()
        self.events_full = False
        self.accepted = self.bytes_up = self.bytes_down = 0
        self.dialling: set[asyncio.Task[None]] = set()

    def accept(self) -> asyncio.Protocol:
        """Return the protocol for a new client connection."""
        return ProxiedConnection(self).client

    def accept_by(self, rule: Rule, certificates: Certificates) -> Callable[[], asyncio.Protocol]:
        """Return the protocol factory of a port with client certificates; `rule` decides which names are allowed there."""
        return lambda: ProxiedConnection(self, rule, certificates).client

    def abort_revoked(self) -> None:
        """Abort the connections whose certificates have expired or were revoked."""
        for connection in list(self.connections):
            connection.abort_if_revoked()

    def on_full(self, is_full: bool) -> None:
        """Pause reading from all clients when too many events wait, and resume it afterwards."""
        self.events_full = is_full
        for connection in list(self.connections):
            if is_full:
                connection.client.pause(EVENTS_WAIT)
            else:
                connection.client.resume(EVENTS_WAIT)

    def close(self) -> None:
        """Close every connection, and emit a disconnected event for each vehicle."""
        for connection in list(self.connections):
            connection.observer.tap_closes()
            connection.close()
