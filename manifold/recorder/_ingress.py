"""Accepts messages: waiting ones are validated, written and synced as one group, then enqueued. Groups grow with the load."""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence

from manifold.archive.journal import Journal, JournalFile
from manifold.messaging.mqtt import Message
from manifold.recorder import _metrics
from manifold.recorder._answers import Answers
from manifold.recorder._parser import Incoming, Parsed, Parser
from manifold.recorder._poison_messages import PoisonGuard
from manifold.recorder._redelivered import RedeliveredMessages
from manifold.recorder._window import Window, weight

GROUP_BYTES = 8 << 20  # bytes of messages written as one group
LARGE = 256 << 10  # bytes; larger messages are validated in a thread, to keep the event loop responsive


class IngressWriter:
    """Records messages and outcomes in groups, as `may_record` permits; `hand_over` gets each group once it is on disk.

    `answer` gets redelivered messages that were recorded before, once the group is on disk. A few `answers` of vehicles are
    recorded with each group, after all others.
    """

    def __init__(
        self,
        parser: Parser,
        journal: Journal,
        window: Window,
        poison_guard: PoisonGuard,
        redelivered: RedeliveredMessages,
        answers: Answers,
        *,
        hand_over: Callable[[JournalFile, list[Incoming]], None],
        answer: Callable[[Incoming], None],
        may_record: Callable[[], Awaitable[None]],
    ) -> None:
        self._parser, self._journal, self._window = parser, journal, window
        self._poison_guard, self._redelivered, self._answers = poison_guard, redelivered, answers
        self._hand_over, self._answer, self._may_record = hand_over, answer, may_record
        self._waiting: deque[Message] = deque()
        self._outcomes: deque[tuple[Sequence[bytes], asyncio.Future[None]]] = deque()
        self._arrived = asyncio.Event()
        self._busy = False
        answers.on_arrived = self._arrived.set

    def put(self, message: Message) -> None:
        """Accept a message."""
        if self._window.admit(message):
            self._waiting.append(message)
            self._arrived.set()

    def forget_redelivered(self) -> None:
        """Drop waiting QoS 1 messages after a lost connection is resumed: the broker redelivers them."""
        waiting, self._waiting = self._waiting, deque()
        for message in waiting:
            if message.qos == 0:
                self._waiting.append(message)
            else:
                self._window.release(message)

    async def put_outcomes(self, payloads: Sequence[bytes]) -> None:
        """Record these outcomes; returns when they are on disk."""
        recorded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outcomes.append((payloads, recorded))
        self._arrived.set()
        await recorded

    @property
    def idle(self) -> bool:
        """Whether everything accepted has been handed over."""
        return not self._has_waiting and not self._busy

    @property
    def _has_waiting(self) -> bool:
        return bool(self._waiting or self._outcomes) or not self._answers.is_empty

    async def run(self) -> None:
        """Record until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            self._busy = True
            while self._has_waiting:
                await self._record_group()
            self._busy = False

    async def _record_group(self) -> None:
        """Write what waits as one group, and hand its messages over once it is on disk."""
        await self._may_record()
        outcomes, recorded = self._take_outcomes()
        taken = await self._take_messages()
        messages = [incoming for incoming in taken if not (incoming.is_redelivered or incoming.is_dropped)]
        answers = self._answers.take()
        if outcomes or messages or answers:
            file = await self._journal.append([incoming.envelope for incoming in outcomes + messages + answers])
            for future in recorded:
                if not future.done():
                    future.set_result(None)
            if messages:
                file.unsettled += len(messages)
                self._hand_over(file, messages)
        for incoming in taken:
            if incoming.is_redelivered or incoming.is_dropped:
                self._answer(incoming)
        self._answers.settle(answers)
        _count(outcomes + taken + answers)

    def _take_outcomes(self) -> tuple[list[Incoming], list[asyncio.Future[None]]]:
        group: list[Incoming] = []
        recorded = []
        while self._outcomes:
            payloads, future = self._outcomes.popleft()
            group += [self._parser.take_outcome(payload) for payload in payloads]
            recorded.append(future)
        return group, recorded

    async def _take_messages(self) -> list[Incoming]:
        """Take waiting messages, up to GROUP_BYTES; one that may have killed an earlier process is parsed in a child process."""
        group: list[Incoming] = []
        size = 0
        while self._waiting and size < GROUP_BYTES:
            message = self._waiting.popleft()
            size += weight(message)
            parsed = await self._poison_guard.parse(message) if self._poison_guard.is_suspect(message) else None
            if len(message.payload) > LARGE:
                group.append(await asyncio.to_thread(self._take, message, parsed))
            else:
                group.append(self._take(message, parsed))
            self._redelivered.note(group[-1])
        return group

    def _take(self, message: Message, parsed: Parsed | None) -> Incoming:
        self._poison_guard.hold(message)
        try:
            return self._parser.take(message, parsed, self._redelivered.find(message))
        finally:
            self._poison_guard.release()


def _count(group: Sequence[Incoming]) -> None:
    messages, size = Counter[tuple[str, str]](), Counter[str]()
    for incoming in group:
        stream = incoming.envelope.stream.value
        messages[stream, _status(incoming)] += 1
        if not incoming.is_dropped:
            size[stream] += len(incoming.envelope.payload)
    for names, count in messages.items():
        _metrics.MESSAGES.labels(*names).inc(count)
    for stream, bytes_ in size.items():
        _metrics.BYTES.labels(stream).inc(bytes_)


def _status(incoming: Incoming) -> str:
    if incoming.is_redelivered:
        return "resent"
    if incoming.is_dropped:
        return "dropped"
    return "refused" if incoming.refused_because else "duplicate" if incoming.duplicate_of else "recorded"
