"""One dispatcher process: its parts, and the order in which they start and stop."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import structlog
from redis.exceptions import RedisError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential_jitter

from dispatcher import _metrics
from dispatcher._brakes import Brakes
from dispatcher._ecq_messages import EcqMessages
from dispatcher._event_reader import EventReader, filters
from dispatcher._lake import Lake
from dispatcher._payloads import Payloads
from dispatcher._policy import DispatchPolicy
from dispatcher._publisher import Window
from dispatcher._queue_stats import QueueStatsCollector
from dispatcher._reconcile import Reconciler
from dispatcher._scheduler import Scheduler
from dispatcher._sources import Deadlines, ParkedEntries, Wakes
from manifold.contracts.errors import Permanent
from manifold.messaging.mqtt import Mqtt
from manifold.queues import Policy, Queues, connect
from manifold.runtime.expiry import export_certificate_expiry
from manifold.runtime.http import Health, serve
from manifold.runtime.lag import watch_lag
from manifold.settings import Settings

SHUTDOWN_TIMEOUT_S = 5.0  # for the events that are in progress at shutdown
# Session expiry of a dispatcher that shares its subscriptions with others, and of a single one, in seconds. The broker keeps the
# share of a disconnected member until its session expires, and then gives it to the other members; so that time is short. Without
# other members, the broker drops the events at that time, and entries that were acknowledged in them are sent again. So the
# session of a single dispatcher lasts as long as a machine needs to restart. max_mqueue_len in infra/emqx/manifold.conf bounds
# the number of messages that the broker keeps.
SHARED_EXPIRY_S, SINGLE_EXPIRY_S = 30, 600
MAX_DEADLINE_INTERVAL_S = 1.0  # between two checks of the deadlines

log = structlog.get_logger(__name__)


def session_expiry_s(settings: Settings) -> int:
    """How long the broker keeps a disconnected dispatcher's session, in seconds."""
    is_shared = settings.shares_subscriptions and settings.dispatchers > 1
    return min(SHARED_EXPIRY_S if is_shared else SINGLE_EXPIRY_S, settings.mqtt_session_expiry_seconds)


class Dispatcher:
    """One dispatcher replica, with the number `replica`."""

    def __init__(self, settings: Settings, replica: int) -> None:
        self.settings, self.name = settings, f"sdv-dispatcher-{replica}"
        self._port = settings.dispatcher_port + replica
        self._has_subscribed = False  # whether the subscriptions were requested; `Mqtt.ready` says whether they are granted
        self._sources: list[asyncio.Task[None]] = []
        self._redis = connect(settings.redis)
        self._queues = Queues(self._redis, Policy.of(settings))
        self._lake = Lake(settings)
        self._payloads = Payloads(self._queues, self._lake, max_bytes=settings.payload_cache_bytes)
        self._messages = EcqMessages(self._queues, self._lake)
        self._brakes = Brakes(self._queues)
        self._parked = ParkedEntries(self._queues, self._payloads, interval_s=settings.parked_retry_seconds)
        self._mqtt = Mqtt(
            settings.mqtt,
            self.name,
            username=settings.mqtt_username_dispatcher,
            password=settings.mqtt_password.get_secret_value() or None,
            clean_start=False,
            session_expiry_s=session_expiry_s(settings),
            receive_maximum=settings.mqtt_receive_maximum,
            tls=settings.tls_files(settings.mqtt_username_dispatcher),
        )
        self._scheduler = Scheduler(
            DispatchPolicy.of(settings),
            self._queues,
            self._payloads,
            self._messages,
            self._mqtt,
            brakes=self._brakes,
            window=Window(settings.publish_window, settings.publish_window_bytes),
            on_parked=self._parked.check_soon,
        )
        self._event_reader = EventReader(self._mqtt, self._scheduler.offer, busy_owners=lambda: self._scheduler.busy_queues)
        self._mqtt.on_message = self._event_reader.handle_message
        self._mqtt.on_unreadable = self._event_reader.ack_unreadable

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until `stop` is set, and then finish the events that are in progress.

        Raises:
            Permanent: a setting is wrong, such as a port that is in use.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._redis.aclose)
            stack.callback(self._lake.close)
            stack.push_async_callback(self._payloads.close)
            stack.push_async_callback(self._messages.close)
            export_certificate_expiry(self.settings, self.settings.mqtt_username_dispatcher)
            token = self.settings.http_token.get_secret_value()
            await stack.enter_async_context(
                serve(self.settings.host, self._port, self.health, token=token, tls_files=self.settings.http_tls_files)
            )
            work = asyncio.create_task(self._work(), name="dispatcher.work")
            stopping = asyncio.create_task(stop.wait(), name="dispatcher.stop")
            await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not work.done():
                await self._finish_events()
                work.cancel()
            await asyncio.wait((work,))
            if not work.cancelled():
                work.result()  # raises: only an error ends this task without cancellation

    def health(self) -> Health:
        """Healthy while Redis answers, the broker is connected, and every subscription is confirmed."""
        mqtt_ready, redis_up = self._mqtt.ready, self._scheduler.redis.is_up
        details = {"mqtt": mqtt_ready, "redis": redis_up, "subscribed": self._has_subscribed}
        return Health(mqtt_ready and redis_up and self._has_subscribed, details)

    async def _work(self) -> None:
        """Connect to Redis and then to the broker, and work until cancelled.

        Redis comes first, because a resumed session delivers events at once, which need Redis.
        """
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(RedisError),
            wait=wait_exponential_jitter(multiplier=0.1, max=2, jitter=0.2),
            before_sleep=_log_retry,
        ):
            with attempt:
                await self._queues.join_wakes()
        self._scheduler.redis.mark_up()
        async with self._mqtt, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._scheduler.run(), name="dispatcher.scheduler")
            tasks.create_task(self._scheduler.publisher.run(), name="dispatcher.publisher")
            tasks.create_task(self._brakes.run(), name="dispatcher.brakes")
            tasks.create_task(watch_lag(self._set_metrics), name="dispatcher.lag")
            await self._mqtt.wait_connected()
            try:
                await self._mqtt.subscribe(*filters(is_shared=self.settings.shares_subscriptions))
            except Permanent as exc:  # the client retries, and until then the service is not healthy
                log.warning("mqtt subscription refused; client retries", client_id=self.name, reason=str(exc))
            self._has_subscribed = True
            self._sources = [
                tasks.create_task(source, name=f"dispatcher.{name}") for name, source in self._make_sources().items()
            ]

    def _make_sources(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Create the coroutines that offer events to the scheduler, apart from the broker's events; by name."""
        settings, offer = self.settings, self._scheduler.offer
        interval_s = min(MAX_DEADLINE_INTERVAL_S, settings.ack_deadline_seconds / 4)
        wakes = Wakes(self._queues, self.name, offer, self._payloads)
        deadlines = Deadlines(self._queues, offer, interval_s=interval_s)
        return {
            "wakes": wakes.run(),
            "stale-wakes": wakes.run_stale(),
            "deadlines": deadlines.run(),
            "parked": self._parked.run(),
            "fresh-parked": self._parked.run_fresh(),
            "queue_stats": QueueStatsCollector(self._queues, self.name).run(),
            "reconcile": Reconciler(settings, self._queues, offer).run(),
        }

    def _set_metrics(self, lag_s: float) -> None:
        """Set the metrics of the event loop's lag and of the backlogs of this process."""
        _metrics.LOOP_LAG_SECONDS.set(lag_s)
        _metrics.JOBS.set(self._scheduler.busy_queues)
        _metrics.BACKLOG.set(self._scheduler.publisher.backlog)
        _metrics.UNCONFIRMED.set(self._scheduler.publisher.unconfirmed)

    async def _finish_events(self) -> None:
        """Take no new events, and finish those in progress. Events that do not finish in time are redelivered."""
        self._event_reader.is_open = False
        for source in self._sources:
            source.cancel()
        try:
            async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
                await self._scheduler.wait_idle()
                await self._scheduler.publisher.wait_confirmed()
                await self._scheduler.wait_idle()  # the PUBACKs are events too
        except TimeoutError:
            log.warning("shutdown timed out; unfinished events will be redelivered", busy_queues=self._scheduler.busy_queues)


def _log_retry(state: RetryCallState) -> None:
    log.warning("redis unavailable; dispatcher start delayed", reason=str(state.outcome.exception() if state.outcome else None))
