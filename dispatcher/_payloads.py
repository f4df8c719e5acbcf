"""Finds the trigger and payload of an entry in memory, then in Redis, then in the lake.

Each trigger and payload is read once for all owners.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

import structlog

from dispatcher import _metrics
from dispatcher._lake import Lake
from dispatcher._payload_reader import PayloadReader, retry_redis, tolerate_out_of_memory
from manifold.contracts.brakes import EntryTrigger
from manifold.queues import Queues

MAX_TRIGGERS = 10_000  # triggers in memory

log = structlog.get_logger(__name__)


async def at_once() -> None:
    """Return at once. This is the default for `may_read`, with which reads never wait."""


class Found(NamedTuple):
    """The trigger and the payload of an entry. The fields are the last ones of `Loaded`, in the same order."""

    request_id: str
    data_id: str
    payload: bytes
    is_release: bool = False
    until_ms: int | None = None

    @classmethod
    def of(cls, trigger: EntryTrigger, payload: bytes) -> "Found":
        """Join an entry's trigger and payload."""
        return cls(trigger.request_id, trigger.data_id, payload, trigger.is_release, trigger.until_ms)


class MissingData(NamedTuple):
    """The data_id whose payload was not found; empty if even the trigger of the entry was not found."""

    data_id: str


OnFound = Callable[[Found | MissingData], None]


class Payloads:
    """A cache of triggers and of payloads up to `max_bytes` in total. The least recently used ones are dropped first.

    Each read waits for `may_read` first.
    """

    def __init__(self, queues: Queues, lake: Lake, *, max_bytes: int) -> None:
        self._queues, self._lake, self._max_bytes = queues, lake, max_bytes
        self._triggers: OrderedDict[int, EntryTrigger] = OrderedDict()
        self._payloads: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._callbacks: dict[int, dict[str, OnFound]] = {}  # of pending requests, by seq and owner
        # The seqs that were requested in this turn of the event loop, each with the first owner that requested it.
        self._requested: dict[int, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.may_read: Callable[[], Awaitable[Any]] = at_once
        # Look up `may_read` at each read, because the scheduler replaces it.
        self._reader = PayloadReader(queues, lake, keep=self._keep_payload, may_read=lambda: self.may_read())

    def cached(self, seq: int) -> Found | None:
        """The trigger and payload of an entry; None unless both are in memory."""
        trigger = self._triggers.get(seq)
        payload = self._payloads.get(trigger.data_id) if trigger else None
        if trigger is None or payload is None:
            return None
        self._triggers.move_to_end(seq)
        self._payloads.move_to_end(trigger.data_id)
        return Found.of(trigger, payload)

    def request_id_of(self, seq: int) -> str | None:
        """The request id of an entry; None if its trigger is not in memory."""
        trigger = self._triggers.get(seq)
        return trigger.request_id if trigger else None

    def fetch(self, owner: str, seq: int, on_found: OnFound) -> None:
        """Find the trigger and payload of an entry, and call `on_found` with `Found` or `MissingData`.

        If an owner requests the same seq again, the request belongs to a new claim, and only its `on_found` is called.
        """
        callbacks_by_owner = self._callbacks.get(seq)
        if callbacks_by_owner is not None:  # the search for this trigger and payload has begun already
            callbacks_by_owner[owner] = on_found
            return
        self._callbacks[seq] = {owner: on_found}
        self._requested[seq] = owner
        if len(self._requested) == 1:  # one task fetches all triggers that are requested in this turn of the event loop
            self._spawn(self._fetch_together(), "dispatcher.triggers")

    def learn(self, seq: int, request_id: str, data_id: str) -> None:
        """Cache a trigger that a wake-up contained, so that it need not be read."""
        self._keep_trigger(seq, EntryTrigger(request_id, data_id))

    async def read(self, data_id: str) -> bytes | None:
        """Read the payload from Redis or the lake; None if neither has it. A payload from the lake is put back into Redis."""
        return await asyncio.shield(self._reader.read(data_id))

    async def close(self) -> None:
        """Stop reading; the callbacks of pending requests are not called."""
        await self._reader.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _fetch_together(self) -> None:
        """Read the requested triggers from Redis in one round trip, or else each from the lake; then find their payloads."""
        requested, self._requested = self._requested, {}
        triggers = {seq: self._triggers[seq] for seq in requested if seq in self._triggers}
        triggers |= await self._read_triggers([seq for seq in requested if seq not in triggers])
        for seq, owner in requested.items():
            trigger = triggers.get(seq)
            if trigger is None:
                self._spawn(self._fetch_from_lake(owner, seq), f"dispatcher.trigger.{seq}")
            else:
                self._find_payload(seq, trigger)

    async def _fetch_from_lake(self, owner: str, seq: int) -> None:
        """Read a trigger from the lake, and then find its payload."""
        trigger = await self._read_trigger_from_lake(owner, seq)
        if trigger is None:
            log.warning("trigger not found in redis or lake", seq=seq, vin=owner)
            self._call_back(seq, MissingData(""))
        else:
            self._find_payload(seq, trigger)

    def _find_payload(self, seq: int, trigger: EntryTrigger) -> None:
        """Find the payload of this trigger, and call the callbacks of all requests for its seq."""
        data_id = trigger.data_id
        payload = self._payloads.get(data_id)
        if payload is not None:
            self._payloads.move_to_end(data_id)
            self._call_back(seq, Found.of(trigger, payload))
            return

        def on_read(reading: "asyncio.Future[bytes | None]") -> None:
            if reading.cancelled():  # by `close`
                return
            read_payload = reading.result()
            self._call_back(seq, MissingData(data_id) if read_payload is None else Found.of(trigger, read_payload))

        self._reader.read(data_id).add_done_callback(on_read)

    def _call_back(self, seq: int, result: Found | MissingData) -> None:
        """Call the callbacks of all owners that have requested this seq."""
        for on_found in self._callbacks.pop(seq).values():
            on_found(result)

    @retry_redis
    async def _read_triggers(self, seqs: Sequence[int]) -> dict[int, EntryTrigger]:
        """Read the triggers with these seqs from Redis, cache those that it has, and return them by seq."""
        if not seqs:
            return {}
        replies = zip(seqs, await self._queues.triggers(seqs), strict=True)
        triggers = {seq: trigger for seq, trigger in replies if trigger is not None}
        for seq, trigger in triggers.items():
            self._keep_trigger(seq, trigger)
        return triggers

    @retry_redis
    async def _read_trigger_from_lake(self, owner: str, seq: int) -> EntryTrigger | None:
        """Read the trigger of an entry from the lake, cache it, and put it back into Redis; None if the lake does not have it."""
        trigger = await self._lake.trigger(owner, seq)
        if trigger is not None:
            self._keep_trigger(seq, trigger)
            with tolerate_out_of_memory("trigger not put back"):
                await self._queues.store_trigger(seq, trigger)
        return trigger

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _keep_trigger(self, seq: int, trigger: EntryTrigger) -> None:
        """Cache a trigger, and drop the least recently used one if there are too many."""
        self._triggers[seq] = trigger
        if len(self._triggers) > MAX_TRIGGERS:
            self._triggers.popitem(last=False)

    def _keep_payload(self, data_id: str, payload: bytes) -> None:
        """Cache a payload, and drop the least recently used ones that no longer fit; the last one stays, whatever its size."""
        replaced_bytes = len(self._payloads.get(data_id, b""))
        self._bytes += len(payload) - replaced_bytes
        self._payloads[data_id] = payload
        while self._bytes > self._max_bytes and len(self._payloads) > 1:
            _, dropped = self._payloads.popitem(last=False)
            self._bytes -= len(dropped)
        _metrics.CACHED_BYTES.set(self._bytes)
