"""All connections that pass through the tap; pauses and ends all of them together."""

import asyncio
from collections.abc import Callable

from manifold.sandbox.tap.connection import EVENTS_WAIT, Dial, ProxiedConnection
from manifold.sandbox.tap.identity import Certificates, Rule
from manifold.sandbox.tap.sessions import Sessions


class Proxy:
    """All connections."""

    def __init__(self, sessions: Sessions, dial: Dial) -> None:
        self.sessions, self.dial = sessions, dial
        self.loop = asyncio.get_running_loop()
        self.connections: set[ProxiedConnection] = set()
        self.events_full = False
        self.accepted = self.bytes_up = self.bytes_down = 0
        self.dialling: set[asyncio.Task[None]] = set()

    def accept(self) -> asyncio.Protocol:
        """The protocol of a client's new connection."""
        return ProxiedConnection(self).client

    def accept_by(self, rule: Rule, certificates: Certificates) -> Callable[[], asyncio.Protocol]:
        """The same for a port on which clients show certificates, and may call themselves what `rule` allows."""
        return lambda: ProxiedConnection(self, rule, certificates).client

    def cut_off(self) -> None:
        """End the connections whose certificates are good no longer."""
        for connection in list(self.connections):
            connection.cut_if_refused()

    def on_full(self, full: bool) -> None:
        """Too many events wait: read from no client until they are told."""
        self.events_full = full
        for connection in list(self.connections):
            connection.client.stop_reading(EVENTS_WAIT) if full else connection.client.read_again(EVENTS_WAIT)

    def close(self) -> None:
        """End every connection; each vehicle's end is told."""
        for connection in list(self.connections):
            connection.observer.tap_closes()
            connection.close()
