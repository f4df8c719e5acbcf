"""All connections through the tap; pauses and closes them together."""

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
        """Return the factory for a port with client certificates, where `rule` decides which names are allowed."""
        return lambda: ProxiedConnection(self, rule, certificates).client

    def cut_off(self) -> None:
        """Abort connections whose certificates are no longer valid."""
        for connection in list(self.connections):
            connection.cut_if_refused()

    def on_full(self, full: bool) -> None:
        """Pause or resume reading from all clients, while too many events wait."""
        self.events_full = full
        for connection in list(self.connections):
            connection.client.pause(EVENTS_WAIT) if full else connection.client.resume(EVENTS_WAIT)

    def close(self) -> None:
        """Close every connection, with a disconnected event for each vehicle."""
        for connection in list(self.connections):
            connection.observer.tap_closes()
            connection.close()
