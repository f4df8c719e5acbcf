"""The face for bulk work: load many owners' entries from the lake, over blocking Redis."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from redis import Redis

from contracts import keys
from contracts.outcomes import Outcome, OutcomeRecord
from contracts.seq import MAX_SEQ, node_of
from queues import _commands
from queues._cluster import is_cluster
from queues._drivers import BlockingBatch
from queues._policy import Policy
from queues._scripts import Args
from queues._spoilt import is_spoilt, spoilt_among
from queues.verbs.ends import End
from queues.verbs.fills import Erase, Offer, flat

OWNERS_A_FLUSH = 500
SEQS_A_CALL = 2000
DONE_AT_ONCE = 100_000  # entries that are gathered by owner before they are sent
T = TypeVar("T")


@dataclass(slots=True)
class LoadResult:
    """What became of the entries that were offered."""

    owners: int = 0
    offered: int = 0
    queued: int = 0
    superseded: list[tuple[str, int]] = field(default_factory=list)
    spoilt: list[str] = field(default_factory=list)  # owners that got nothing, because a key of theirs holds another type

    def __add__(self, other: "LoadResult") -> "LoadResult":
        return LoadResult(
            self.owners + other.owners,
            self.offered + other.offered,
            self.queued + other.queued,
            self.superseded + other.superseded,
            self.spoilt + other.spoilt,
        )


class Ended(NamedTuple):
    """How an entry has ended; `outcome` is None where it is in flight."""

    owner: str
    seq: int
    outcome: Outcome | None


class Forgotten(NamedTuple):
    """Ended entries that the queues do not remember any more, and those that they have to."""

    forgotten: int
    kept: int


class Loader:
    """Loads the queues in bulk: one script call an owner, some 500 owners a flush. `redis` must not decode responses.

    Raises:
        redis.RedisError: from every method, where Redis is away or refuses; everything may be offered again.
    """

    def __init__(self, redis: Redis, policy: Policy) -> None:
        self._redis, self._policy = redis, policy
        self.spoilt: set[str] = set()  # owners that `end` has passed over, because a key of theirs holds another type

    def enqueue(self, entries: Iterable[tuple[str, Sequence[tuple[int, str]]]], now_ms: int) -> LoadResult:
        """Offer (owner, [(seq, request_id), …] oldest first); wakes the dispatchers for owners that can have theirs now."""
        return self.offer(((owner, flat(self._policy, mine)) for owner, mine in entries), now_ms)

    def offer(self, parts: Iterable[tuple[str, Sequence[Any]]], now_ms: int) -> LoadResult:
        """The same of (owner, [seq, …] oldest first), or where compaction is on (owner, [seq, request_id, seq, …])."""
        total = LoadResult()
        for some in _in_flushes(parts):
            total += self._flush(some, now_ms)
        return total

    def end(self, entries: Iterable[tuple[str, Sequence[int]]], outcome: Outcome, now_ms: int) -> Iterator[Ended]:
        """End entries (owner, seqs) that are not in flight; what is in flight ends so unless it is acknowledged.

        Gives each with how it has ended by now. Record those of this outcome (`add_outcomes`): until that is done,
        ending them again answers the same. An owner whose keys are spoilt is left out, and in `spoilt` from then on.
        """
        for some in _in_flushes(_in_pieces(entries)):
            batch = self._batch()
            for owner, seqs in some:
                records = tuple(OutcomeRecord(owner, seq, outcome, now_ms) for seq in seqs)
                batch.add(owner, End(records, claim=False, recorded=True), now_ms)
            for (owner, seqs), reply in zip(some, batch.run(tolerant=True), strict=True):
                if is_spoilt(reply):
                    self.spoilt.add(owner)
                    continue
                for seq, how in zip(seqs, reply.outcomes, strict=True):
                    yield Ended(owner, seq, how)

    def erase(self, owner: str, before: int) -> int:
        """Let everything of an owner go that was accepted before this seq, and its presence; how many entries."""
        batch = self._batch()
        batch.add(owner, Erase(before), 0)
        gone: int = batch.run()[0]
        return gone

    def add_outcomes(self, records: Iterable[OutcomeRecord]) -> None:
        """Hand outcomes to the recorder."""
        for some in _in_flushes(records):
            self._send(map(_commands.record_outcome, some))

    def store_triggers(self, triggers: Mapping[int, tuple[str, str]]) -> list[str]:
        """Keep request_id and data_id of each trigger seq; the keys that hold another type, and were left as they are."""
        spoilt: dict[str, None] = {}
        for some in _in_flushes(triggers.items()):
            sent = [(seq, command) for seq, said in some for command in _commands.store_trigger(self._policy, seq, *said)]
            replies = self._send((command for _, command in sent), tolerant=True)
            spoilt |= dict.fromkeys(keys.trigger(seq) for (seq, _), reply in zip(sent, replies, strict=True) if is_spoilt(reply))
        return list(spoilt)

    def forget_done(self, ended: Iterable[tuple[str, int]]) -> "Forgotten":
        """The lake knows these outcomes (owner, seq): the queues forget those that no recorder can offer again."""
        left, forgotten, kept = iter(ended), 0, 0
        while some := list(islice(left, DONE_AT_ONCE)):
            handed = self._handed({node_of(seq) for _, seq in some})
            settled = [(owner, seq) for owner, seq in some if seq <= handed.get(node_of(seq), MAX_SEQ)]
            kept += len(some) - len(settled)
            by_owner: dict[str, list[int]] = {}
            for pairs in _in_flushes(settled):
                if self._has_any([keys.done(owner) for owner, _ in pairs]):
                    for owner, seq in pairs:
                        by_owner.setdefault(owner, []).append(seq)
            for owners in _in_flushes(by_owner.items()):
                commands: list[Args] = [("ZREM", keys.done(owner), *seqs) for owner, seqs in owners]
                forgotten += sum(reply for reply in self._send(commands, tolerant=True) if not is_spoilt(reply))
        return Forgotten(forgotten, kept)

    def spoilt_key(self, owner: str) -> str:
        """What is wrong with the keys of an owner: the first that holds another type than it should, and which type that is."""
        found = spoilt_among(owner, self._send([("TYPE", key) for key in keys.owner_keys(owner)]))
        return found or f"what one of its keys holds cannot be read, of {', '.join(keys.owner_keys(owner))}"

    def _handed(self, nodes: Iterable[int]) -> dict[int, int]:
        """Up to which seq each of these recorders will offer nothing again; those that hand nothing over are not there."""
        found = {}
        for node in nodes:
            marks = keys.handed_marks(node, of_cluster=is_cluster(self._redis))
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
        """The queues hold everything pending; by recorder, up to which seq triggers and stream ecq were found in the lake."""
        if self.is_loaded():  # and say so already
            return
        self._redis.delete(keys.TAKEN)
        known: dict[Any, Any] = {keys.taken_field(node): seq for node, seq in (taken or {}).items()}
        known |= {keys.taken_field(node, of_ecq=True): seq for node, seq in (taken_ecq or {}).items()}
        if known:
            self._redis.hset(keys.TAKEN, mapping=known)
        for mark in keys.loaded_marks(of_cluster=is_cluster(self._redis)):
            self._redis.set(mark, now_ms)

    def _flush(self, some: Sequence[tuple[str, Sequence[Any]]], now_ms: int) -> LoadResult:
        batch = self._batch()
        for owner, parts in some:
            batch.add(owner, Offer(parts), now_ms)
        an_entry = 2 if self._policy.compaction else 1
        result = LoadResult(owners=len(some), offered=sum(len(parts) for _, parts in some) // an_entry)
        ready: dict[int, list[str]] = {}
        for (owner, _), reply in zip(some, batch.run(tolerant=True), strict=True):
            if is_spoilt(reply):
                result.spoilt.append(owner)
                continue
            result.queued += reply.queued
            result.superseded += [(owner, seq) for seq in reply.superseded]
            if reply.word == "ready":
                ready.setdefault(keys.shard_of(owner, self._policy.wake_shards), []).append(owner)
        if ready:
            self._send(_commands.wake(shard, owners) for shard, owners in ready.items())
        return result

    def _has_any(self, some: Sequence[str]) -> bool:
        """Whether Redis has one of these keys: cheaper than to ask of each. Of a cluster, where nobody knows of all: yes."""
        return is_cluster(self._redis) or self._send([("EXISTS", *some)])[0] > 0

    def _batch(self) -> BlockingBatch:
        return BlockingBatch(self._redis, self._policy)

    def _send(self, commands: Iterable[Args], *, tolerant: bool = False) -> list[Any]:
        """The replies as they come."""
        batch = self._batch()
        for command in commands:
            batch.call(command, _as_it_is)
        return batch.run(tolerant=tolerant)


def _as_it_is(reply: Any) -> Any:
    return reply


def _in_pieces(entries: Iterable[tuple[str, Sequence[int]]]) -> Iterator[tuple[str, Sequence[int]]]:
    """A script that looks at one entry after the other must not keep Redis from all others."""
    for owner, seqs in entries:
        for start in range(0, len(seqs), SEQS_A_CALL):
            yield owner, seqs[start : start + SEQS_A_CALL]


def _in_flushes(items: Iterable[T]) -> Iterator[list[T]]:
    left = iter(items)
    while some := list(islice(left, OWNERS_A_FLUSH)):
        yield some
