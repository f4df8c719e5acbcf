"""Publishes to the broker: a window of unconfirmed publishes, bounded in number and bytes, with a backlog behind it.

A broker, or a proxy in front of it, may close the connection because of one publish without saying which. All publishes under way
are lost then. So a publish that was lost twice is sent alone from then on. If the connection breaks again, that publish waits for
its deadline, which counts as an attempt, and the others continue.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import structlog

from dispatcher import _metrics
from dispatcher._brakes import Ruling
from dispatcher._events import Loaded, NotPublished, OfClaim, Publish, Published, PublishLost, Unsendable, Withheld
from dispatcher._monotonic import monotonic_ms
from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.queue_names import QueueName
from manifold.contracts.seq import wall_clock_ms
from manifold.messaging.mqtt import FIRST_REFUSAL, Mqtt

SUSPECT = 2  # connection losses after which a publish is suspect
SUSPECTS_KEPT = 10_000
TAKEN = _metrics.REASON_CODES.labels("0")

log = structlog.get_logger(__name__)
TopicOf = Callable[[QueueName, str], str]  # called with a request id or a key
Report = Callable[[QueueName, OfClaim], None]
RulingOn = Callable[[str, int | None], Ruling | None]  # called with campaign and end of the window, just before the publish


class Window(NamedTuple):
    """The bounds of the unconfirmed publishes; a single publish may be larger."""

    publishes: int
    bytes_: int


class Publisher:
    """Sends publishes in the order of the calls, and reports the result of each.

    A publish whose `send_by` passes before there is room is not sent, since another replica may have claimed it. An unconfirmed
    publish holds a copy of its payload in the connection's buffer. `is_light` is set while the payloads in the backlog, and those
    being read for it, are fewer bytes than the window allows; more are read only then.
    """

    def __init__(
        self, mqtt: Mqtt, *, topic_of: TopicOf, ruling: RulingOn, window: Window, report: Report, room: Callable[[], None]
    ) -> None:
        self._mqtt, self._topic_of, self._window, self._report, self._room = mqtt, topic_of, window, report, room
        self._ruling = ruling
        self._backlog: deque[tuple[QueueName, Publish]] = deque()
        self._backlog_bytes = self._unconfirmed_bytes = 0
        self.is_light = asyncio.Event()
        self.is_light.set()
        self._unconfirmed: set[asyncio.Future[int]] = set()
        self._losses: OrderedDict[tuple[QueueName, int], int] = OrderedDict()  # connection losses by publish
        # An unconfirmed suspect: nothing else is sent until it is confirmed, or its deadline has passed.
        self._suspect: asyncio.Future[int] | None = None
        self._suspect_until = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stuck = asyncio.Event()  # there is a backlog, and no PUBACK will make room for it

    @property
    def backlog(self) -> int:
        """The number of publishes that wait for room in the window."""
        return len(self._backlog)

    @property
    def unconfirmed(self) -> int:
        """The number of publishes that wait for the broker's PUBACK."""
        return len(self._unconfirmed)

    def send(self, queue: QueueName, publish: Publish) -> None:
        """Publish after the backlog: now, or as soon as there is room."""
        self._backlog.append((queue, publish))
        self.add_backlog_bytes(len(publish.what.payload))
        self._fill()

    def add_backlog_bytes(self, more: int) -> None:
        """Count this many more bytes of payload, or fewer if negative, as in the backlog or on their way to it."""
        self._backlog_bytes += more
        if self._backlog_bytes < self._window.bytes_:
            self.is_light.set()
        else:
            self.is_light.clear()

    async def run(self) -> None:
        """Send the backlog whenever the connection is back; runs forever. While connected, each PUBACK makes room."""
        while True:
            await self._stuck.wait()
            await self._mqtt.wait_connected()
            self._stuck.clear()
            self._fill()

    async def settle(self) -> None:
        """Wait for the PUBACKs of all unconfirmed publishes."""
        while self._unconfirmed:
            await asyncio.wait(self._unconfirmed)

    def _has_room(self, queue: QueueName, publish: Publish) -> bool:
        if not self._unconfirmed:
            return self._mqtt.connected.is_set()
        if self._is_suspect(queue, publish):
            self._wake_at(publish.send_by)
            return monotonic_ms() >= publish.send_by  # then `_start` reports it as not published
        few = len(self._unconfirmed) < self._window.publishes and self._unconfirmed_bytes < self._window.bytes_
        return few and self._suspect is None and self._mqtt.connected.is_set()

    def _is_suspect(self, queue: QueueName, publish: Publish) -> bool:
        return bool(self._losses) and self._losses.get((queue, publish.what.seq), 0) >= SUSPECT

    def _fill(self) -> None:
        while self._backlog and self._has_room(*self._backlog[0]):
            queue, publish = self._backlog.popleft()
            self.add_backlog_bytes(-len(publish.what.payload))
            self._start(queue, publish)
        if not self._backlog:
            self._room()
        elif not self._unconfirmed:
            self._stuck.set()

    def _start(self, queue: QueueName, publish: Publish) -> None:
        """Hand one publish to the broker, or report why it cannot be: too late, braked, no connection, or too large."""
        what = publish.what
        if monotonic_ms() >= publish.send_by:
            self._report(queue, NotPublished(what.seq, what.claimed_ms))
            return
        expiry_s = None
        if what.is_release:
            ruling = self._ruling(what.request_id, what.until_ms)
            if ruling is None:
                self._report(queue, NotPublished(what.seq, what.claimed_ms))
                return
            if ruling.why_not is not None:
                self._report(queue, Withheld(what.seq, what.claimed_ms, wall_clock_ms(), ruling.why_not))
                return
            expiry_s = ruling.expiry_s
        topic = self._topic_of(queue, what.request_id)
        properties = (("seq", str(what.seq)), ("data-id", what.data_id)) if what.data_id else (("seq", str(what.seq)),)
        try:
            answer = self._mqtt.publish(
                topic,
                what.payload,
                user_properties=properties,
                expiry_s=expiry_s,
                recipient_max_packet_bytes=publish.max_packet_bytes,
            )
        except Retryable:
            self._report(queue, PublishLost(what.seq, what.claimed_ms))
            return
        if answer.done() and isinstance(why := answer.exception(), Permanent):
            self._report(queue, Unsendable(what.seq, what.claimed_ms, wall_clock_ms(), str(why)))
            return
        _metrics.PUBLISHED.inc()
        if self._is_suspect(queue, publish):
            self._suspect, self._suspect_until = answer, publish.send_by
            self._wake_at(publish.send_by)
        self._unconfirmed.add(answer)
        self._unconfirmed_bytes += len(what.payload)
        answer.add_done_callback(partial(self._on_answer, queue, what))

    def _on_answer(self, queue: QueueName, what: Loaded, answer: "asyncio.Future[int]") -> None:
        """Report the broker's answer to a publish, or that it was lost, and publish more of the backlog."""
        self._unconfirmed.discard(answer)
        self._unconfirmed_bytes -= len(what.payload)
        was_alone = answer is self._suspect
        if was_alone:
            self._suspect = None
        if answer.cancelled() or answer.exception() is not None:
            self._note_loss(queue, what.seq)
            self._report(queue, PublishLost(what.seq, what.claimed_ms, was_alone))
        else:
            code = answer.result()
            if self._losses:
                self._losses.pop((queue, what.seq), None)
            (TAKEN if code == 0 else _metrics.REASON_CODES.labels(str(code))).inc()
            if code >= FIRST_REFUSAL:
                log.warning("publish rejected by broker", vin=queue, seq=what.seq, request_id=what.request_id, reason_code=code)
            self._report(queue, Published(what.seq, what.claimed_ms, code))
        if self._backlog:
            self._fill()

    def _wake_at(self, at: int) -> None:
        """Call `_on_timer` at `at` (by `monotonic_ms`): deadlines in the backlog pass even if no PUBACK arrives."""
        if self._timer is None:
            after_s = max(0, at - monotonic_ms()) / 1000 + 0.001
            self._timer = asyncio.get_running_loop().call_later(after_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._suspect is not None:
            if monotonic_ms() < self._suspect_until:
                self._wake_at(self._suspect_until)
            else:
                self._suspect = None
        self._fill()

    def _note_loss(self, queue: QueueName, seq: int) -> None:
        self._losses[queue, seq] = self._losses.pop((queue, seq), 0) + 1
        if len(self._losses) > SUSPECTS_KEPT:
            self._losses.popitem(last=False)
