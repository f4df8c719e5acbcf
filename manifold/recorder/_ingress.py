"""Accepts messages: the waiting ones are validated, written and synced as one group, then handed over to the enqueuer.

Groups grow with the load.
"""

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
LARGE_PAYLOAD_BYTES = 256 << 10  # larger payloads are validated in a thread, to keep the event loop responsive


class IngressWriter:
    """Records messages and outcomes in groups. Before each, `wait_until_may_record` waits until the lease permits new seqs.

    `hand_over` gets the new messages of each group once the group is on disk. `answer` then gets the messages that are answered
    without being recorded: redelivered messages that were recorded before, and dropped ones. At the end of each group, a limited
    number of answers of vehicles is recorded.
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
        wait_until_may_record: Callable[[], Awaitable[None]],
    ) -> None:
        self._parser, self._journal, self._window = parser, journal, window
        self._poison_guard, self._redelivered, self._answers = poison_guard, redelivered, answers
        self._hand_over, self._answer, self._wait_until_may_record = hand_over, answer, wait_until_may_record
        self._waiting: deque[Message] = deque()
        self._outcomes: deque[tuple[Sequence[bytes], asyncio.Future[None]]] = deque()
        self._arrived = asyncio.Event()
        self._busy = False
        answers.on_arrived = self._arrived.set

    def put(self, message: Message) -> None:
        """Queue a message to be recorded, unless the window drops it."""
        if self._window.admit(message):
            self._waiting.append(message)
            self._arrived.set()

    def forget_redelivered(self) -> None:
        """Drop the waiting QoS 1 messages when the session is resumed, because the broker redelivers them."""
        received, self._waiting = self._waiting, deque()
        for message in received:
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
        """Write waiting outcomes, messages and answers as one group, and hand its messages over once the group is on disk."""
        await self._wait_until_may_record()
        outcomes, futures = self._take_outcomes()
        received = await self._take_messages()
        messages = [incoming for incoming in received if not incoming.is_only_answered]
        answers = self._answers.take()
        if outcomes or messages or answers:
            file = await self._journal.append([incoming.envelope for incoming in outcomes + messages + answers])
            for future in futures:
                if not future.done():  # it is done if `put_outcomes` was cancelled
                    future.set_result(None)
            if messages:
                file.unsettled += len(messages)
                self._hand_over(file, messages)
        for incoming in received:
            if incoming.is_only_answered:
                self._answer(incoming)
        self._answers.settle(answers)
        _count(outcomes + received + answers)

    def _take_outcomes(self) -> tuple[list[Incoming], list[asyncio.Future[None]]]:
        """Remove all waiting outcomes; return their records, and the futures to complete once the records are on disk."""
        group: list[Incoming] = []
        futures = []
        while self._outcomes:
            payloads, future = self._outcomes.popleft()
            group += [self._parser.build_outcome(payload) for payload in payloads]
            futures.append(future)
        return group, futures

    async def _take_messages(self) -> list[Incoming]:
        """Remove waiting messages, oldest first, until they reach `GROUP_BYTES`; return their records.

        A message that may have killed an earlier process is parsed in a child process.
        """
        group: list[Incoming] = []
        size = 0
        while self._waiting and size < GROUP_BYTES:
            message = self._waiting.popleft()
            size += weight(message)
            parsed = await self._poison_guard.parse(message) if self._poison_guard.is_suspect(message) else None
            if len(message.payload) > LARGE_PAYLOAD_BYTES:
                incoming = await asyncio.to_thread(self._build, message, parsed)
            else:
                incoming = self._build(message, parsed)
            self._redelivered.remember(incoming)
            group.append(incoming)
        return group

    def _build(self, message: Message, parsed: Parsed | None) -> Incoming:
        """Build the record of a message; if this kills the process, the next one finds the message's digest in a file."""
        self._poison_guard.begin_parsing(message)
        try:
            return self._parser.build(message, parsed, self._redelivered.find(message))
        finally:
            self._poison_guard.end_parsing()


def _count(group: Sequence[Incoming]) -> None:
    """Count the messages of a group by stream and status, and the payload bytes of those that are not dropped."""
    messages, payload_bytes = Counter[tuple[str, str]](), Counter[str]()
    for incoming in group:
        stream = incoming.envelope.stream.value
        messages[stream, _status(incoming)] += 1
        if not incoming.is_dropped:
            payload_bytes[stream] += len(incoming.envelope.payload)
    for (stream, status), count in messages.items():
        _metrics.MESSAGES.labels(stream, status).inc(count)
    for stream, size in payload_bytes.items():
        _metrics.BYTES.labels(stream).inc(size)


def _status(incoming: Incoming) -> str:
    """The label `status` of a message in the metrics."""
    if incoming.is_redelivered:
        return "resent"
    if incoming.is_dropped:
        return "dropped"
    if incoming.refused_because:
        return "refused"
    return "duplicate" if incoming.duplicate_of else "recorded"
