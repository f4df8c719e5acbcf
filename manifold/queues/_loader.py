"""Bulk operations on fanout queues, over blocking Redis: many owners per round trip."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from redis import Redis

from manifold.contracts import keys
from manifold.contracts.brakes import Braking, EntryTrigger
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.seq import node_of
from manifold.queues import _commands
from manifold.queues._bulk import BulkQueues, LoadResult
from manifold.queues._cluster import is_cluster
from manifold.queues._corrupt_keys import find_corrupt_key, is_corrupt
from manifold.queues._policy import Policy
from manifold.queues._scripts import Args
from manifold.queues.verbs.ends import End
from manifold.queues.verbs.fills import Erase, Offer, flatten

OWNERS_PER_FLUSH = 500
SEQS_PER_CALL = 2000
DONE_BATCH_SIZE = 100_000  # ended entries that are grouped by owner at a time
T = TypeVar("T")


class Ended(NamedTuple):
    """An entry and its outcome, which is None while the entry is in flight."""

    owner: str
    seq: int
    outcome: Outcome | None


class Forgotten(NamedTuple):
    """The number of ended entries that the queues have forgotten, and of those that they must still remember."""

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
        """Queue the entries of each owner, given as (owner, [(seq, request_id), …]), oldest first.

        Dispatchers are woken for the owners that are present.
        """
        return self.offer(((owner, flatten(self._policy, owned)) for owner, owned in entries), now_ms)

    def offer(self, parts: Iterable[tuple[str, Sequence[Any]]], now_ms: int) -> LoadResult:
        """Queue entries as `enqueue` does, but given in the form that `Offer` takes.

        This is (owner, [seq, …]), or (owner, [seq, request_id, seq, …]) with compaction.
        """
        total = LoadResult()
        for chunk in _in_chunks(parts):
            total += self._flush(chunk, now_ms)
        return total

    def end(self, entries: Iterable[tuple[str, Sequence[int]]], outcome: Outcome, now_ms: int) -> Iterator[Ended]:
        """End entries, given as (owner, seqs), and yield each with the outcome that it now has; None if it is in flight.

        The entries end only as the result is consumed. An entry in flight stays in flight, and ends with `outcome` at its
        deadline unless it is acknowledged. The outcomes are not sent to the recorder: pass those of the yielded entries that have
        `outcome` to `add_outcomes`. A repeated call yields the same, so a crash between the two calls loses nothing. An owner
        with corrupt keys is skipped and added to `spoilt`.
        """
        for chunk in _in_chunks(_in_pieces(entries)):
            verbs: list[tuple[str, End]] = []
            for owner, seqs in chunk:
                records = tuple(OutcomeRecord(owner, seq, outcome, now_ms) for seq in seqs)
                verbs.append((owner, End(records, claim=False, sends_outcome=False)))
            replies = self._run(verbs, now_ms, tolerant=True)
            for (owner, seqs), reply in zip(chunk, replies, strict=True):
                if is_corrupt(reply):
                    self.spoilt.add(owner)
                    continue
                for seq, known_outcome in zip(seqs, reply.outcomes, strict=True):
                    yield Ended(owner, seq, known_outcome)

    def erase(self, owner: str, before: int) -> int:
        """Remove everything of an owner with a seq less than `before`; returns the number of removed entries.

        If no entry is left, the owner's presence is removed too.
        """
        (removed,) = self._run([(owner, Erase(before))], now_ms=0)
        return int(removed)

    def add_outcomes(self, records: Iterable[OutcomeRecord]) -> None:
        """Write outcomes to the stream that the recorder reads."""
        for chunk in _in_chunks(records):
            self._send(map(_commands.record_outcome, chunk))

    def load_brakes(self, brakings: Iterable[Braking]) -> None:
        """Set these brakes, which are all that exist, unless Redis has newer orders, and mark the brakes as loaded."""
        changes = ((braking.campaign, braking.brake, None) for braking in brakings)
        self._send([_commands.brake(changes, are_all=True)])

    def store_triggers(self, triggers: Mapping[int, EntryTrigger]) -> list[str]:
        """Store what the entries of each trigger share, by seq; returns the keys of a wrong type, which are left unchanged."""
        corrupt_keys: dict[str, None] = {}  # an ordered set
        for chunk in _in_chunks(triggers.items()):
            commands: list[Args] = []
            seqs: list[int] = []  # the seq of each command
            for seq, trigger in chunk:
                trigger_commands = _commands.store_trigger(self._policy, seq, trigger)
                commands += trigger_commands
                seqs += [seq] * len(trigger_commands)
            replies = self._send(commands, tolerant=True)
            for seq, reply in zip(seqs, replies, strict=True):
                if is_corrupt(reply):
                    corrupt_keys[keys.trigger(seq)] = None
        return list(corrupt_keys)

    def forget_done(self, ended: Iterable[tuple[str, int]]) -> "Forgotten":
        """Forget ended entries (owner, seq) whose outcomes are in the lake, unless a recorder could still offer them again."""
        remaining = iter(ended)
        forgotten = kept = 0
        while batch := list(islice(remaining, DONE_BATCH_SIZE)):
            forgettable = self._forgettable(batch)
            kept += len(batch) - len(forgettable)
            seqs_by_owner: dict[str, list[int]] = {}
            for pairs in _in_chunks(forgettable):
                # Ask once for all these owners first, because in a rebuild hardly any owner has ended entries.
                if self._has_any([keys.done(owner) for owner, _ in pairs]):
                    for owner, seq in pairs:
                        seqs_by_owner.setdefault(owner, []).append(seq)
            for owners in _in_chunks(seqs_by_owner.items()):
                commands: list[Args] = [("ZREM", keys.done(owner), *seqs) for owner, seqs in owners]
                forgotten += sum(reply for reply in self._send(commands, tolerant=True) if not is_corrupt(reply))
        return Forgotten(forgotten, kept)

    def _forgettable(self, ended: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return those of the ended entries (owner, seq) that no recorder can offer again."""
        enqueued_seqs = self._enqueued_seqs({node_of(seq) for _, seq in ended})
        forgettable: list[tuple[str, int]] = []
        for owner, seq in ended:
            enqueued_seq = enqueued_seqs.get(node_of(seq))  # None: this recorder enqueues nothing
            if enqueued_seq is None or seq <= enqueued_seq:
                forgettable.append((owner, seq))
        return forgettable

    def corrupt_key(self, owner: str) -> str:
        """Describe the owner's first key with a wrong type, naming the key and its type.

        If every key has the right type, name all keys, because one of them has an unreadable value.
        """
        description = find_corrupt_key(owner, self._send([("TYPE", key) for key in keys.owner_keys(owner)]))
        return description or f"one of these keys holds an unreadable value: {', '.join(keys.owner_keys(owner))}"

    def _enqueued_seqs(self, nodes: Iterable[int]) -> dict[int, int]:
        """Read the watermarks of these recorders: node → seq up to which the recorder has enqueued everything.

        A recorder without a watermark is left out, because it enqueues nothing. In a cluster, a recorder has one watermark per
        part of the slots: the smallest counts, or 0 if some of them are missing.
        """
        seqs_by_node: dict[int, int] = {}
        for node in nodes:
            mark_keys = keys.watermark_keys(node, of_cluster=is_cluster(self._redis))
            marks = self._send([("GET", key) for key in mark_keys])
            seqs = [int(mark.split()[1]) for mark in marks if mark]  # a watermark is `<load_id> <seq>`
            if seqs:
                is_complete = len(seqs) == len(mark_keys)
                seqs_by_node[node] = min(seqs) if is_complete else 0
        return seqs_by_node

    def is_loaded(self) -> bool:
        """Whether the queues are marked as holding everything that is pending."""
        marks = keys.loaded_marks(of_cluster=is_cluster(self._redis))
        return bool(self._redis.exists(*marks) == len(marks))

    def mark_loaded(
        self, now_ms: int, loaded_seqs: Mapping[int, int] | None = None, loaded_ecq_seqs: Mapping[int, int] | None = None
    ) -> None:
        """Mark the queues as holding everything that is pending, unless they are marked already.

        `loaded_seqs` gives, by recorder, the seq up to which the recorder's triggers were loaded from the lake, and
        `loaded_ecq_seqs` the same for the recorder's stream `ecq`.
        """
        if self.is_loaded():
            return
        # The marks come last, so that they are never set without the seqs.
        self._redis.delete(keys.REBUILT_UP_TO)
        fields: dict[Any, Any] = {keys.rebuilt_field(node): seq for node, seq in (loaded_seqs or {}).items()}
        fields |= {keys.rebuilt_field(node, of_ecq=True): seq for node, seq in (loaded_ecq_seqs or {}).items()}
        if fields:
            self._redis.hset(keys.REBUILT_UP_TO, mapping=fields)
        for mark in keys.loaded_marks(of_cluster=is_cluster(self._redis)):
            self._redis.set(mark, now_ms)

    def _flush(self, offers: Sequence[tuple[str, Sequence[Any]]], now_ms: int) -> LoadResult:
        """Queue these entries, in the form that `offer` takes, in one round trip, and wake the dispatchers."""
        replies = self._run(((owner, Offer(parts)) for owner, parts in offers), now_ms, tolerant=True)
        parts_per_entry = 2 if self._policy.compaction else 1
        offered = sum(len(parts) for _, parts in offers) // parts_per_entry
        result = LoadResult(owners=len(offers), offered=offered)
        ready = []
        for (owner, _), reply in zip(offers, replies, strict=True):
            if is_corrupt(reply):
                result.spoilt.append(owner)
                continue
            result.queued += reply.queued
            result.superseded += [(owner, seq) for seq in reply.superseded]
            if reply.word == "ready":
                ready.append(owner)
        self._wake(ready)
        return result

    def _has_any(self, names: Sequence[str]) -> bool:
        """Whether Redis has any of these keys. Always true in a cluster, where one command cannot check keys of several nodes."""
        return is_cluster(self._redis) or self._send([("EXISTS", *names)])[0] > 0

    def _send(self, commands: Iterable[Args], *, tolerant: bool = False) -> list[Any]:
        """Send commands and return the raw replies."""
        batch = self._batch()
        for command in commands:
            batch.call(command, _identity)
        return batch.run(tolerant=tolerant)


def _identity(reply: Any) -> Any:
    return reply


def _in_pieces(entries: Iterable[tuple[str, Sequence[int]]]) -> Iterator[tuple[str, Sequence[int]]]:
    """Split the entries of each owner into pieces of `SEQS_PER_CALL`, because a script blocks Redis while it runs."""
    for owner, seqs in entries:
        for start in range(0, len(seqs), SEQS_PER_CALL):
            yield owner, seqs[start : start + SEQS_PER_CALL]


def _in_chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """Group the items into lists of up to `OWNERS_PER_FLUSH`."""
    remaining = iter(items)
    while chunk := list(islice(remaining, OWNERS_PER_FLUSH)):
        yield chunk
