"""Bulk operations on fanout queues, over blocking Redis: many owners per round trip."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from redis import Redis

from manifold.contracts import keys
from manifold.contracts.brakes import Braking, EntryTrigger
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import MAX_SEQ, node_of
from manifold.queues import _commands
from manifold.queues._bulk import BulkQueues, LoadResult
from manifold.queues._cluster import is_cluster
from manifold.queues._corrupt_keys import find_corrupt_key, is_corrupt
from manifold.queues._policy import Policy
from manifold.queues._scripts import Args
from manifold.queues.verbs.ends import End
from manifold.queues.verbs.fills import Erase, Offer, flat

OWNERS_PER_FLUSH = 500
SEQS_PER_CALL = 2000
DONE_BATCH_SIZE = 100_000  # entries that are grouped by owner before they are sent
T = TypeVar("T")


class Ended(NamedTuple):
    """An entry and its outcome; None while it is in flight."""

    owner: str
    seq: int
    outcome: Outcome | None


class Forgotten(NamedTuple):
    """The number of ended entries that the queues forgot, and of those they still have to remember."""

    forgotten: int
    kept: int


class Loader(BulkQueues):
    """Fills fanout queues: one script call per owner, 500 owners per round trip. `redis` must not decode responses.

    Raises:
        redis.RedisError: from every method, if Redis is unavailable or rejects a command; everything may be offered again.
    """

    def __init__(self, redis: Redis, policy: Policy) -> None:
        super().__init__(redis, policy)
        self.spoilt: set[str] = set()  # owners that `end` skipped because of a key with a wrong type

    def enqueue(self, entries: Iterable[tuple[str, Sequence[tuple[int, str]]]], now_ms: int) -> LoadResult:
        """Queue (owner, [(seq, request_id), …]) entries, oldest first, and wake the dispatchers for owners that are present."""
        return self.offer(((owner, flat(self._policy, mine)) for owner, mine in entries), now_ms)

    def offer(self, parts: Iterable[tuple[str, Sequence[Any]]], now_ms: int) -> LoadResult:
        """As `enqueue`, with flattened entries: (owner, [seq, …]), or (owner, [seq, request_id, seq, …]) with compaction."""
        total = LoadResult()
        for some in _in_flushes(parts):
            total += self._flush(some, now_ms)
        return total

    def end(self, entries: Iterable[tuple[str, Sequence[int]]], outcome: Outcome, now_ms: int) -> Iterator[Ended]:
        """End entries (owner, seqs), and yield each with the outcome that it has then; None if it is in flight.

        Lazy: entries end as the result is consumed. An entry in flight stays so, and ends with `outcome` at its deadline unless
        it is acknowledged. The recorder is not told: pass the entries that have `outcome` to `add_outcomes`. Calling `end` again
        yields the same, so a crash in between loses nothing. An owner with corrupt keys is skipped and added to `spoilt`.
        """
        for some in _in_flushes(_in_pieces(entries)):
            ends = [(owner, tuple(OutcomeRecord(owner, seq, outcome, now_ms) for seq in seqs)) for owner, seqs in some]
            verbs = ((owner, End(records, claim=False, sends_outcome=False)) for owner, records in ends)
            for (owner, seqs), reply in zip(some, self._run(verbs, now_ms, tolerant=True), strict=True):
                if is_corrupt(reply):
                    self.spoilt.add(owner)
                    continue
                for seq, how in zip(seqs, reply.outcomes, strict=True):
                    yield Ended(owner, seq, how)

    def erase(self, owner: str, before: int) -> int:
        """Remove everything of an owner that was accepted before this seq; returns the number of entries.

        Without any entry left, its presence is removed too.
        """
        (gone,) = self._run([(owner, Erase(before))], 0)
        return int(gone)

    def add_outcomes(self, records: Iterable[OutcomeRecord]) -> None:
        """Write outcomes to the stream that the recorder reads."""
        for some in _in_flushes(records):
            self._send(map(_commands.record_outcome, some))

    def load_brakes(self, brakings: Iterable[Braking]) -> None:
        """Put on all brakes that there are, each unless a newer order is known, and note that they are loaded."""
        self._send([_commands.brake(((each.campaign, each.brake, None) for each in brakings), are_all=True)])

    def store_triggers(self, triggers: Mapping[int, EntryTrigger]) -> list[str]:
        """Store what the entries of each trigger seq share; returns the keys of a wrong type, which are left alone."""
        spoilt: dict[str, None] = {}
        for some in _in_flushes(triggers.items()):
            sent = [(seq, command) for seq, said in some for command in _commands.store_trigger(self._policy, seq, said)]
            replies = self._send((command for _, command in sent), tolerant=True)
            spoilt |= dict.fromkeys(keys.trigger(seq) for (seq, _), reply in zip(sent, replies, strict=True) if is_corrupt(reply))
        return list(spoilt)

    def forget_done(self, ended: Iterable[tuple[str, int]]) -> "Forgotten":
        """Forget ended entries (owner, seq) whose outcomes are in the lake, unless a recorder could still offer them again."""
        left, forgotten, kept = iter(ended), 0, 0
        while some := list(islice(left, DONE_BATCH_SIZE)):
            handed_over = self._handed_over({node_of(seq) for _, seq in some})
            settled = [(owner, seq) for owner, seq in some if seq <= handed_over.get(node_of(seq), MAX_SEQ)]
            kept += len(some) - len(settled)
            by_owner: dict[str, list[int]] = {}
            for pairs in _in_flushes(settled):
                if self._has_any([keys.done(owner) for owner, _ in pairs]):
                    for owner, seq in pairs:
                        by_owner.setdefault(owner, []).append(seq)
            for owners in _in_flushes(by_owner.items()):
                commands: list[Args] = [("ZREM", keys.done(owner), *seqs) for owner, seqs in owners]
                forgotten += sum(reply for reply in self._send(commands, tolerant=True) if not is_corrupt(reply))
        return Forgotten(forgotten, kept)

    def corrupt_key(self, owner: str) -> str:
        """Describe the owner's first key with a wrong type, naming the key and its type."""
        found = find_corrupt_key(owner, self._send([("TYPE", key) for key in keys.owner_keys(owner)]))
        return found or f"one of these keys holds an unreadable value: {', '.join(keys.owner_keys(owner))}"

    def _handed_over(self, nodes: Iterable[int]) -> dict[int, int]:
        """By recorder, the seq up to which it will offer nothing again; recorders that hand nothing over are missing."""
        found = {}
        for node in nodes:
            marks = keys.watermark_keys(node, of_cluster=is_cluster(self._redis))
            seqs = [int(raw.split()[1]) for raw in self._send([("GET", mark) for mark in marks]) if raw]
            if seqs:
                found[node] = min(seqs) if len(seqs) == len(marks) else 0
        return found

    def is_loaded(self) -> bool:
        """Whether the queues hold everything pending."""
        marks = keys.loaded_marks(of_cluster=is_cluster(self._redis))
        return bool(self._redis.exists(*marks) == len(marks))

    def mark_loaded(
        self, now_ms: int, taken: Mapping[int, int] | None = None, taken_ecq: Mapping[int, int] | None = None
    ) -> None:
        """Mark the queues as holding everything pending.

        `taken` and `taken_ecq` give, by recorder, the seq up to which its triggers and its stream `ecq` came from the lake.
        """
        if self.is_loaded():
            return
        self._redis.delete(keys.REBUILT_UP_TO)
        known: dict[Any, Any] = {keys.taken_field(node): seq for node, seq in (taken or {}).items()}
        known |= {keys.taken_field(node, of_ecq=True): seq for node, seq in (taken_ecq or {}).items()}
        if known:
            self._redis.hset(keys.REBUILT_UP_TO, mapping=known)
        for mark in keys.loaded_marks(of_cluster=is_cluster(self._redis)):
            self._redis.set(mark, now_ms)

    def _flush(self, some: Sequence[tuple[str, Sequence[Any]]], now_ms: int) -> LoadResult:
        replies = self._run(((owner, Offer(parts)) for owner, parts in some), now_ms, tolerant=True)
        an_entry = 2 if self._policy.compaction else 1
        result = LoadResult(owners=len(some), offered=sum(len(parts) for _, parts in some) // an_entry)
        ready = []
        for (owner, _), reply in zip(some, replies, strict=True):
            if is_corrupt(reply):
                result.spoilt.append(owner)
                continue
            result.queued += reply.queued
            result.superseded += [(owner, seq) for seq in reply.superseded]
            if reply.word == "ready":
                ready.append(owner)
        self._wake(ready)
        return result

    def _has_any(self, some: Sequence[str]) -> bool:
        """Whether Redis has any of these keys, in one command; always true for a cluster, where they are on several nodes."""
        return is_cluster(self._redis) or self._send([("EXISTS", *some)])[0] > 0

    def _send(self, commands: Iterable[Args], *, tolerant: bool = False) -> list[Any]:
        """Send commands and return the raw replies."""
        batch = self._batch()
        for command in commands:
            batch.call(command, _identity)
        return batch.run(tolerant=tolerant)


def _identity(reply: Any) -> Any:
    return reply


def _in_pieces(entries: Iterable[tuple[str, Sequence[int]]]) -> Iterator[tuple[str, Sequence[int]]]:
    """Split the entries into pieces of `SEQS_PER_CALL`, because a script blocks Redis while it runs."""
    for owner, seqs in entries:
        for start in range(0, len(seqs), SEQS_PER_CALL):
            yield owner, seqs[start : start + SEQS_PER_CALL]


def _in_flushes(items: Iterable[T]) -> Iterator[list[T]]:
    left = iter(items)
    while some := list(islice(left, OWNERS_PER_FLUSH)):
        yield some
