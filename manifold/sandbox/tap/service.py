"""The tap as a service: accepts vehicles, connects each to the broker, and publishes the events of their packets."""

import asyncio
import os
import ssl
import time
from collections.abc import Callable

import orjson
import structlog

from manifold.contracts.errors import Permanent
from manifold.contracts.rights import PUBLISHER_PREFIX, Rights
from manifold.contracts.tls import SECRETS
from manifold.contracts.topics import BrokerEvent, event_topic
from manifold.runtime.http import Health
from manifold.sandbox.tap.event_publisher import EventPublisher
from manifold.sandbox.tap.events import Fields
from manifold.sandbox.tap.identity import Certificates, is_platform, is_vehicle
from manifold.sandbox.tap.proxy import Proxy
from manifold.sandbox.tap.publication_store import PublicationStore
from manifold.sandbox.tap.sessions import Sessions
from manifold.settings import Settings
from manifold.settings.embedded_broker import config_file, inner_socket, outer_socket

SWEEP_S = 30.0  # between two sweeps of expired sessions
CERTIFICATE_CHECK_S = 1.0  # between two checks of the certificate files
TLS_HANDSHAKE_S, TLS_SHUTDOWN_S = 10.0, 2.0  # timeouts
DRAIN_S = 3.0  # maximum wait, when the tap stops, for the broker to confirm the last events
BACKLOG = 4096  # connections that a listen socket queues

log = structlog.get_logger(__name__)


class Tap:
    """The tap: connections, sessions, stored publications, and the event publisher."""

    def __init__(self, settings: Settings, *, emit_delivered: bool = False) -> None:
        self.settings = settings
        # A Mosquitto with Manifold's configuration has an inner listener for the tap's events, any other a single listener.
        self._inner_socket = str(inner_socket(settings)) if config_file(settings).exists() else None
        self._certificates: Certificates | None = None
        self.store = PublicationStore(settings.home / "tap" / "publications.jsonl")
        self.sessions = Sessions(_rights(settings), self.store, self.emit, _now_ms, emit_delivered=emit_delivered)
        self.proxy = Proxy(self.sessions, self._dial)
        self.publisher = EventPublisher(self._dial_inner, self.proxy.on_full)
        self.events = dict.fromkeys(BrokerEvent, 0)
        self.listening = False

    def emit(self, event: BrokerEvent, client_id: str, fields: Fields, done: Callable[[], None] | None) -> None:
        """Emit an event. On return it is written to the socket, or queued; `done` is called once it is confirmed."""
        self.events[event] += 1
        self.publisher.publish(event_topic(event, client_id).encode(), orjson.dumps(fields), done)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, then emit a disconnected event for each vehicle.

        Raises:
            Permanent: a port is in use.
        """
        settings = self.settings
        async with asyncio.TaskGroup() as tasks:
            publisher = tasks.create_task(self.publisher.run(), name="manifold.sandbox.tap.events")
            sweeper = tasks.create_task(self._sweep(), name="tap.sweep")
            servers = await self._listen()
            certificate_watch = tasks.create_task(self._watch_certificates(), name="tap.certificates")
            self.listening = True
            log.info("tap listens", port=settings.mqtt_port, tls=settings.tls, stored_publications=len(self.store))
            try:
                await stop.wait()
            finally:
                for server in servers:
                    server.close()
                self.listening = False
                self.proxy.close()
                drained = await self.publisher.drain(DRAIN_S)
                log.info("tap stopping", unconfirmed_events=0 if drained else self.publisher.backlog)
                publisher.cancel()
                sweeper.cancel()
                certificate_watch.cancel()
                self.store.close()

    async def _listen(self) -> list[asyncio.Server]:
        """Listen on the port of all clients, or with TLS, on one port for vehicles, and one for services and publishers."""
        settings, accept = self.settings, self.proxy.accept
        if not settings.tls:
            return [await self._server(accept, settings.mqtt_port, "MANIFOLD_MQTT_PORT", None)]
        try:
            self._certificates = certificates = Certificates(settings.home / SECRETS)
        except (OSError, ValueError) as exc:
            raise Permanent(
                f"the certificates in {settings.home / SECRETS} cannot be read ({exc}); `manifold up` makes them"
            ) from exc
        accept_vehicle = self.proxy.accept_by(is_vehicle, certificates)
        accept_platform = self.proxy.accept_by(is_platform, certificates)
        context = certificates.context
        return [
            await self._server(accept_vehicle, settings.mqtt_port, "MANIFOLD_MQTT_PORT", context),
            await self._server(accept_platform, settings.mqtt_services_port, "MANIFOLD_MQTT_SERVICES_PORT", context),
        ]

    async def _server(
        self, accept: Callable[[], asyncio.Protocol], port: int, setting: str, context: ssl.SSLContext | None
    ) -> asyncio.Server:
        """Listen on the port, with TLS if there is a context; `setting` is the port's setting, for the error message."""
        host, loop = self.settings.host, asyncio.get_running_loop()
        handshake_s, shutdown_s = (TLS_HANDSHAKE_S, TLS_SHUTDOWN_S) if context else (None, None)
        try:
            return await loop.create_server(
                accept,
                host,
                port,
                backlog=BACKLOG,
                ssl=context,
                ssl_handshake_timeout=handshake_s,
                ssl_shutdown_timeout=shutdown_s,
            )
        except OSError as exc:
            raise Permanent(f"cannot listen on {host}:{port} ({os.strerror(exc.errno or 0)}); choose another {setting}") from exc

    async def _watch_certificates(self) -> None:
        """Periodically reload certificate files, and disconnect clients whose certificates have expired or were revoked.

        Without TLS there are no certificates, and this returns at once.
        """
        while self._certificates is not None:
            await asyncio.sleep(CERTIFICATE_CHECK_S)
            self._certificates.reload_if_changed()
            self.proxy.abort_revoked()

    def health(self) -> Health:
        """Report ready if vehicles can connect and events are published."""
        details = {
            "events_waiting": self.publisher.backlog,
            "connections": len(self.proxy.connections),
            "remembered": len(self.store),
        }
        is_ready = self.listening and self.publisher.connected and not self.publisher.full
        return Health(is_ready, details)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sessions.sweep()
            self.store.flush()

    async def _dial(self, factory: Callable[[], asyncio.Protocol], username: str | None) -> object:
        """Connect a client to the broker: a platform publisher to the inner listener, any other to the outer one."""
        if username is not None and username.startswith(PUBLISHER_PREFIX):
            return await self._dial_inner(factory)
        loop = asyncio.get_running_loop()
        if self.settings.tls:  # with TLS the broker listens on sockets only, so that clients cannot bypass the tap
            return await loop.create_unix_connection(factory, str(outer_socket(self.settings)))
        return await loop.create_connection(factory, self.settings.loopback, self.settings.broker_port)

    async def _dial_inner(self, factory: Callable[[], asyncio.Protocol]) -> object:
        """Connect to the broker's inner listener, or to its only listener if it has no inner one."""
        loop = asyncio.get_running_loop()
        if self._inner_socket is not None:
            return await loop.create_unix_connection(factory, self._inner_socket)
        return await loop.create_connection(factory, self.settings.loopback, self.settings.broker_port)


def _rights(settings: Settings) -> Rights:
    return Rights(
        topic_prefix=settings.topic_prefix,
        receipt_prefix=settings.receipt_prefix,
        recorder=settings.mqtt_username_recorder,
        dispatcher=settings.mqtt_username_dispatcher,
        publisher=settings.mqtt_username_publisher,
        campaigns=settings.mqtt_username_campaigns,
        api=settings.mqtt_username_api,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
