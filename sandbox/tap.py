"""The event tap: a transparent MQTT proxy in front of Mosquitto that tells of vehicles what EMQX would tell.

What it cannot know: messages that the broker throws out of a session (`delivery_dropped`), and `dropped` for a publisher on
MQTT 3.1.1 or with QoS 0. What is lost when it is killed: events on their way, for which the dispatcher's acknowledgement deadline
makes up, and `disconnected` for the vehicles that were connected; they come back, and `connected` is told again.
"""

import asyncio
import gc
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable
from typing import Annotated

import orjson
import structlog
import typer
import uvloop
from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from adapters.http import Health, serve
from adapters.log import configure_logging
from contracts.errors import ManifoldError, Permanent
from contracts.settings import Settings, load_settings
from contracts.topics import BrokerEvent, event_topic
from sandbox import broker
from sandbox.events import Fields
from sandbox.link import EventLink
from sandbox.memory import Memory
from sandbox.proxy import Proxy
from sandbox.sessions import Sessions

SWEEP_S = 30.0
DRAIN_S = 3.0  # how long a tap that is stopped waits for the broker to take the last events
BACKLOG = 4096  # connections that wait to be accepted

log = structlog.get_logger(__name__)


class Tap:
    """The whole: connections, sessions, memory and the event link."""

    def __init__(self, settings: Settings, *, tell_delivered: bool = False) -> None:
        self.settings = settings
        # With Manifold's own configuration the tap's events need the inner listener; any other Mosquitto has one for all.
        self._inner = str(broker.inner_socket(settings)) if broker.config_file(settings).exists() else None
        self.memory = Memory(settings.home / "tap" / "publications.jsonl")
        self.sessions = Sessions(settings.topic_prefix, self.memory, self.emit, _now_ms, tell_delivered=tell_delivered)
        self.proxy = Proxy(self.sessions, self._dial)
        self.link = EventLink(self._dial_inner, self.proxy.on_full)
        self.events = dict.fromkeys(BrokerEvent, 0)
        self.listening = False

    def emit(self, event: BrokerEvent, client_id: str, fields: Fields, done: Callable[[], None] | None) -> None:
        """Tell an event; it is on the socket, or waits for one, when this returns."""
        self.events[event] += 1
        self.link.publish(event_topic(event, client_id).encode(), orjson.dumps(fields), done)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, then tell that the vehicles are cut off.

        Raises:
            Permanent: a port is taken.
        """
        settings, loop = self.settings, asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            link = tasks.create_task(self.link.run(), name="tap.events")
            sweeper = tasks.create_task(self._sweep(), name="tap.sweep")
            try:
                server = await loop.create_server(self.proxy.accept, settings.host, settings.mqtt_port, backlog=BACKLOG)
            except OSError as exc:
                place = f"{settings.host}:{settings.mqtt_port}"
                raise Permanent(
                    f"cannot listen on {place} ({os.strerror(exc.errno or 0)}); choose another MANIFOLD_MQTT_PORT"
                ) from exc
            self.listening = True
            log.info("tap listens", port=settings.mqtt_port, broker_port=settings.broker_port, remembered=len(self.memory))
            try:
                await stop.wait()
            finally:
                server.close()
                self.listening = False
                self.proxy.close()
                drained = await self.link.drained(DRAIN_S)
                log.info("tap stops", untold=0 if drained else self.link.backlog)
                link.cancel()
                sweeper.cancel()
                self.memory.close()

    def health(self) -> Health:
        """Ready when vehicles can connect and events get through."""
        details = {"events_waiting": self.link.backlog, "connections": len(self.proxy.passages), "remembered": len(self.memory)}
        return Health(self.listening and self.link.connected and not self.link.full, details)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sessions.sweep()
            self.memory.flush()

    async def _dial(self, factory: Callable[[], asyncio.Protocol], username: str | None) -> object:
        if username is not None and username.startswith(broker.PUBLISHER_PREFIX):
            return await self._dial_inner(factory)
        loop = asyncio.get_running_loop()
        return await loop.create_connection(factory, self.settings.loopback, self.settings.broker_port)

    async def _dial_inner(self, factory: Callable[[], asyncio.Protocol]) -> object:
        loop = asyncio.get_running_loop()
        if self._inner is not None:
            return await loop.create_unix_connection(factory, self._inner)
        return await loop.create_connection(factory, self.settings.loopback, self.settings.broker_port)


class TapMetrics(Collector):
    """The tap's own counters, read when somebody asks: counting costs the passing packets nothing."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap

    def collect(self) -> Iterable[Metric]:
        """What `/metrics` shows."""
        tap = self._tap
        events = CounterMetricFamily("manifold_tap_events", "Events told, by kind.", labels=["event"])
        for event, count in tap.events.items():
            events.add_metric([event.value], count)
        yield events
        passed = CounterMetricFamily("manifold_tap_bytes", "Bytes passed, by direction.", labels=["to"])
        passed.add_metric(["broker"], tap.proxy.bytes_up)
        passed.add_metric(["client"], tap.proxy.bytes_down)
        yield passed
        counts = (
            ("connections", "Connections accepted.", tap.proxy.accepted),
            ("link_reconnects", "Times that the event link was lost and found.", max(tap.link.reconnects, 0)),
            ("forgotten_early", "Publications forgotten for want of room.", tap.memory.forgotten_early),
        )
        for name, meaning, value in counts:
            yield CounterMetricFamily(f"manifold_tap_{name}", meaning, value=value)
        levels = (
            ("open_connections", "Connections now.", len(tap.proxy.passages)),
            ("events_waiting", "Events that the broker has not confirmed.", tap.link.backlog),
            ("publications", "Publications remembered.", len(tap.memory)),
        )
        for name, meaning, value in levels:
            yield GaugeMetricFamily(f"manifold_tap_{name}", meaning, value=value)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _main(settings: Settings, tell_delivered: bool) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    tap = Tap(settings, tell_delivered=tell_delivered)
    REGISTRY.register(TapMetrics(tap))
    async with serve(settings.host, settings.tap_port, tap.health, token=settings.http_token.get_secret_value()):
        await tap.run(stop)


def main(
    delivered: Annotated[bool, typer.Option("--delivered", help="Tell `delivered` too, which nothing here reads.")] = False,
) -> None:
    """Stand between the vehicles and Mosquitto, and tell what EMQX would tell."""
    configure_logging("tap")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # two sockets a vehicle
    gc.set_threshold(
        100_000, 50, 100
    )  # sessions live long and hold no cycles: looking through all of them would cost milliseconds
    try:
        uvloop.run(_main(load_settings(), delivered))
    except* ManifoldError as group:
        typer.echo("; ".join(str(problem) for problem in group.exceptions), err=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    typer.run(main)
