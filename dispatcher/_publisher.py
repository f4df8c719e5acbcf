"""Publishes to the broker: a window bounds the unconfirmed publishes in number and bytes, and others wait in a backlog.

A broker, or a proxy in front of it, may close the connection because of one publish, without saying which. All unconfirmed
publishes are lost then. So a publish that was lost twice is suspect, and is sent alone from then on. If the connection breaks
while it is sent alone, that publish is only repeated after its deadline, which counts as an attempt, and the others continue.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import structlog

from dispatcher import _metrics
from dispatcher._brakes import Ruling
from dispatcher._events import ClaimEvent, Loaded, NotPublished, Publish, Published, PublishLost, Unsendable, Withheld
from dispatcher._monotonic import monotonic_ms
from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.queue_names import QueueName
from manifold.contracts.seq import wall_clock_ms
from manifold.messaging.mqtt import FIRST_REFUSAL, Mqtt

LOSSES_OF_SUSPECT = 2  # number of connection losses that make a publish suspect
MAX_LOST_PUBLISHES = 10_000  # publishes whose losses are counted
ACCEPTED = _metrics.REASON_CODES.labels("0")

log = structlog.get_logger(__name__)
TopicOf = Callable[[QueueName, str], str]  # returns the topic for a queue, and a request id or a key
Report = Callable[[QueueName, ClaimEvent], None]
RulingOn = Callable[[str, int | None], Ruling | None]  # takes campaign and end of the time window; called just before a publish


class Window(NamedTuple):
    """The bounds of the unconfirmed publishes; a single publish may be larger."""

    publishes: int
    bytes_: int


class Publisher:
    """Sends publishes in the order of the calls, and reports the result of each.

    A publish whose `send_by` passes before the window has room is not sent, because another replica may have claimed the entry.
    The window bounds bytes, because the connection's buffer has a copy of each unconfirmed payload. `may_read` is set while more
    payloads may be read: while the backlog and the payloads that are being read for it have fewer bytes than the window allows.
    `on_empty_backlog` is called whenever the backlog is empty.
    """

    def __init__(
        self,
        mqtt: Mqtt,
        *,
        topic_of: TopicOf,
        ruling: RulingOn,
        window: Window,
        report: Report,
        on_empty_backlog: Callable[[], None],
    ) -> None:
        self._mqtt, self._topic_of, self._ruling, self._window, self._report = mqtt, topic_of, ruling, window, report
        self._on_empty_backlog = on_empty_backlog
        self._backlog: deque[tuple[QueueName, Publish]] = deque()
        self._backlog_bytes = self._unconfirmed_bytes = 0
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._unconfirmed: set[asyncio.Future[int]] = set()
        self._losses: OrderedDict[tuple[QueueName, int], int] = OrderedDict()  # (queue, seq) → number of connection losses
        # The unconfirmed suspect that is sent alone. Nothing else is sent until it is confirmed or its deadline has passed.
        self._suspect: asyncio.Future[int] | None = None
        self._suspect_until = 0  # that deadline, by `monotonic_ms`
        self._timer: asyncio.TimerHandle | None = None
        self._is_stuck = asyncio.Event()  # set while there is a backlog, but no unconfirmed publish whose PUBACK will make room

    @property
    def backlog(self) -> int:
        """The number of publishes that wait for room in the window."""
        return len(self._backlog)

    @property
    def unconfirmed(self) -> int:
        """The number of publishes that wait for the broker's PUBACK."""
        return len(self._unconfirmed)

    def send(self, queue: QueueName, publish: Publish) -> None:
        """Publish after everything in the backlog: now, or as soon as the window has room."""
        self._backlog.append((queue, publish))
        self.add_backlog_bytes(len(publish.entry.payload))
        self._fill()

    def add_backlog_bytes(self, count: int) -> None:
        """Add to the bytes of the payloads in the backlog and of those being read for it; a negative number subtracts."""
        self._backlog_bytes += count
        if self._backlog_bytes < self._window.bytes_:
            self.may_read.set()
        else:
            self.may_read.clear()

    async def run(self) -> None:
        """Send the backlog whenever the client has reconnected, forever. While it is connected, each PUBACK makes room."""
        while True:
            await self._is_stuck.wait()
            await self._mqtt.wait_connected()
            self._is_stuck.clear()
            self._fill()

    async def wait_confirmed(self) -> None:
        """Wait for the PUBACKs of all unconfirmed publishes."""
        while self._unconfirmed:
            await asyncio.wait(self._unconfirmed)

    def _may_start(self, queue: QueueName, publish: Publish) -> bool:
        """Whether `publish` may be started now: within the window, and not beside a suspect."""
        if not self._unconfirmed:  # a single publish may be larger than the window
            return self._mqtt.connected.is_set()
        if self._is_suspect(queue, publish):  # it is sent alone, so it waits for the PUBACKs of all others, or for its deadline
            self._set_timer(publish.send_by)
            return monotonic_ms() >= publish.send_by  # `_start` then reports that it was not published
        has_room = len(self._unconfirmed) < self._window.publishes and self._unconfirmed_bytes < self._window.bytes_
        return has_room and self._suspect is None and self._mqtt.connected.is_set()

    def _is_suspect(self, queue: QueueName, publish: Publish) -> bool:
        """Whether `publish` was lost so often that it may have broken the connection."""
        if not self._losses:  # the usual case
            return False
        return self._losses.get((queue, publish.entry.seq), 0) >= LOSSES_OF_SUSPECT

    def _fill(self) -> None:
        """Send publishes of the backlog while the window has room."""
        while self._backlog:
            queue, publish = self._backlog[0]
            if not self._may_start(queue, publish):
                break
            self._backlog.popleft()
            self.add_backlog_bytes(-len(publish.entry.payload))
            self._start(queue, publish)
        if not self._backlog:
            self._on_empty_backlog()
        elif not self._unconfirmed:
            self._is_stuck.set()

    def _start(self, queue: QueueName, publish: Publish) -> None:
        """Hand one publish to the broker, or report why that is impossible: too late, braked, no connection, or too large."""
        entry = publish.entry
        if monotonic_ms() >= publish.send_by:
            self._report(queue, NotPublished(entry.seq, entry.claimed_ms))
            return
        expiry_s = None
        if entry.is_release:
            ruling = self._ruling(entry.request_id, entry.until_ms)  # the request id of a release is its campaign
            if ruling is None:
                self._report(queue, NotPublished(entry.seq, entry.claimed_ms))
                return
            if ruling.why_not is not None:
                self._report(queue, Withheld(entry.seq, entry.claimed_ms, wall_clock_ms(), ruling.why_not))
                return
            expiry_s = ruling.expiry_s
        properties: tuple[tuple[str, str], ...] = (("seq", str(entry.seq)),)
        if entry.data_id:  # a message of a compacted queue has none
            properties += (("data-id", entry.data_id),)
        try:
            puback = self._mqtt.publish(
                self._topic_of(queue, entry.request_id),
                entry.payload,
                user_properties=properties,
                expiry_s=expiry_s,
                recipient_max_packet_bytes=publish.max_packet_bytes,
            )
        except Retryable:
            self._report(queue, PublishLost(entry.seq, entry.claimed_ms))
            return
        error = puback.exception() if puback.done() else None  # done at once if the packet is too large
        if isinstance(error, Permanent):
            self._report(queue, Unsendable(entry.seq, entry.claimed_ms, wall_clock_ms(), str(error)))
            return
        _metrics.PUBLISHED.inc()
        if self._is_suspect(queue, publish):
            self._suspect, self._suspect_until = puback, publish.send_by
            self._set_timer(publish.send_by)
        self._unconfirmed.add(puback)
        self._unconfirmed_bytes += len(entry.payload)
        puback.add_done_callback(partial(self._on_puback, queue, entry))

    def _on_puback(self, queue: QueueName, entry: Loaded, puback: "asyncio.Future[int]") -> None:
        """Report the PUBACK of a publish, or that the connection was lost before it, and publish more of the backlog."""
        self._unconfirmed.discard(puback)
        self._unconfirmed_bytes -= len(entry.payload)
        was_alone = puback is self._suspect
        if was_alone:
            self._suspect = None
        if puback.cancelled() or puback.exception() is not None:
            self._count_loss(queue, entry.seq)
            self._report(queue, PublishLost(entry.seq, entry.claimed_ms, alone=was_alone))
        else:
            code = puback.result()
            if self._losses:
                self._losses.pop((queue, entry.seq), None)
            counter = ACCEPTED if code == 0 else _metrics.REASON_CODES.labels(str(code))
            counter.inc()
            if code >= FIRST_REFUSAL:
                log.warning("publish rejected by broker", vin=queue, seq=entry.seq, request_id=entry.request_id, reason_code=code)
            self._report(queue, Published(entry.seq, entry.claimed_ms, code))
        if self._backlog:
            self._fill()

    def _set_timer(self, due_ms: int) -> None:
        """Call `_on_timer` at `due_ms` (by `monotonic_ms`), unless the timer is set already.

        The timer is necessary because deadlines of the backlog also pass if no PUBACK arrives.
        """
        if self._timer is None:
            delay_s = max(0, due_ms - monotonic_ms()) / 1000 + 0.001
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        """Send the backlog without waiting longer for a suspect whose deadline has passed, and report overdue publishes."""
        self._timer = None
        if self._suspect is not None:
            if monotonic_ms() < self._suspect_until:
                self._set_timer(self._suspect_until)
            else:
                self._suspect = None
        self._fill()

    def _count_loss(self, queue: QueueName, seq: int) -> None:
        """Count a loss of this publish, and forget the publish whose last loss is the longest ago if there are too many."""
        losses = self._losses.pop((queue, seq), 0)  # removed first, so that it becomes the last item of the ordered dict
        self._losses[queue, seq] = losses + 1
        if len(self._losses) > MAX_LOST_PUBLISHES:
            self._losses.popitem(last=False)
