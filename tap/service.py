"""The tap as a service: it listens for vehicles, connects each to the broker, and publishes the events of their packets."""

import asyncio
import os
import time
from collections.abc import Callable

import orjson
import structlog

from adapters.http import Health
from contracts.embedded_broker import PUBLISHER_PREFIX, config_file, inner_socket
from contracts.errors import Permanent
from contracts.settings import Settings
from contracts.topics import BrokerEvent, event_topic
from tap.event_publisher import EventPublisher
from tap.events import Fields
from tap.proxy import Proxy
from tap.publication_store import PublicationStore
from tap.sessions import Sessions

SWEEP_S = 30.0
DRAIN_S = 3.0  # how long a tap that is stopped waits for the broker to take the last events
BACKLOG = 4096  # connections that wait to be accepted

log = structlog.get_logger(__name__)


class Tap:
    """The whole: connections, sessions, remembered publications, and the publisher of events."""

    def __init__(self, settings: Settings, *, tell_delivered: bool = False) -> None:
        self.settings = settings
        # With Manifold's own configuration the tap's events need the inner listener; any other Mosquitto has one for all.
        self._inner = str(inner_socket(settings)) if config_file(settings).exists() else None
        self.store = PublicationStore(settings.home / "tap" / "publications.jsonl")
        self.sessions = Sessions(settings.topic_prefix, self.store, self.emit, _now_ms, tell_delivered=tell_delivered)
        self.proxy = Proxy(self.sessions, self._dial)
        self.publisher = EventPublisher(self._dial_inner, self.proxy.on_full)
        self.events = dict.fromkeys(BrokerEvent, 0)
        self.listening = False

    def emit(self, event: BrokerEvent, client_id: str, fields: Fields, done: Callable[[], None] | None) -> None:
        """Tell an event; it is on the socket, or waits for one, when this returns."""
        self.events[event] += 1
        self.publisher.publish(event_topic(event, client_id).encode(), orjson.dumps(fields), done)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, then tell that the vehicles are cut off.

        Raises:
            Permanent: a port is taken.
        """
        settings, loop = self.settings, asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            publisher = tasks.create_task(self.publisher.run(), name="tap.events")
            sweeper = tasks.create_task(self._sweep(), name="tap.sweep")
            try:
                server = await loop.create_server(self.proxy.accept, settings.host, settings.mqtt_port, backlog=BACKLOG)
            except OSError as exc:
                place = f"{settings.host}:{settings.mqtt_port}"
                raise Permanent(
                    f"cannot listen on {place} ({os.strerror(exc.errno or 0)}); choose another MANIFOLD_MQTT_PORT"
                ) from exc
            self.listening = True
            log.info("tap listens", port=settings.mqtt_port, broker_port=settings.broker_port, remembered=len(self.store))
            try:
                await stop.wait()
            finally:
                server.close()
                self.listening = False
                self.proxy.close()
                drained = await self.publisher.drained(DRAIN_S)
                log.info("tap stops", untold=0 if drained else self.publisher.backlog)
                publisher.cancel()
                sweeper.cancel()
                self.store.close()

    def health(self) -> Health:
        """Ready when vehicles can connect and events get through."""
        details = {
            "events_waiting": self.publisher.backlog,
            "connections": len(self.proxy.connections),
            "remembered": len(self.store),
        }
        return Health(self.listening and self.publisher.connected and not self.publisher.full, details)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sessions.sweep()
            self.store.flush()

    async def _dial(self, factory: Callable[[], asyncio.Protocol], username: str | None) -> object:
        if username is not None and username.startswith(PUBLISHER_PREFIX):
            return await self._dial_inner(factory)
        loop = asyncio.get_running_loop()
        return await loop.create_connection(factory, self.settings.loopback, self.settings.broker_port)

    async def _dial_inner(self, factory: Callable[[], asyncio.Protocol]) -> object:
        loop = asyncio.get_running_loop()
        if self._inner is not None:
            return await loop.create_unix_connection(factory, self._inner)
        return await loop.create_connection(factory, self.settings.loopback, self.settings.broker_port)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
