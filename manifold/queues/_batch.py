"""Many verbs in one round trip, without I/O: `Batch.exchanges` yields commands and is sent their raw replies.

The order of commands, the loading of missing scripts and the parsing of replies are implemented once, here. The two drivers
(`_drivers`) do the I/O.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from redis.exceptions import NoScriptError, OutOfMemoryError, RedisError, ResponseError

from manifold.contracts import keys
from manifold.queues import _commands
from manifold.queues._commands import TriggerName
from manifold.queues._corrupt_keys import is_corrupt, unreadable
from manifold.queues._policy import Policy
from manifold.queues._scripts import LOAD_COMMANDS, Args
from manifold.queues.verbs.claims import Park
from manifold.queues.verbs.verb import Recorded, Verb

T = TypeVar("T")
Exchange = Generator[list[Args], list[Any], T]
Read = Callable[[Any], Any]
QUEUES_PER_WAKE = 1000
FIRST, MIDDLE, LAST = range(3)  # a single Redis keeps the order of a batch; a cluster runs it in stages


@dataclass(slots=True)
class _Plan:
    """The commands of a batch. A place is an index into `commands`."""

    commands: list[Args] = field(default_factory=list)
    reads: list[Read | None] = field(default_factory=list)  # None for a note, which has no result
    stages: dict[int, int] = field(default_factory=dict)  # of commands outside the middle stage
    despite_oom: list[int] = field(default_factory=list)
    notes: dict[int, int] = field(default_factory=dict)  # place of a note → place of its verb, which reports the note's error
    record_first: list[tuple[int, str, int, Recorded]] = field(default_factory=list)  # place, queue, now_ms; only in a cluster


class Batch:
    """Collects verbs and commands. A driver sends them together and returns the replies in the order of the calls.

    A batch is not a transaction; only each verb is atomic.
    """

    def __init__(self, policy: Policy, *, of_cluster: bool) -> None:
        self._policy, self._of_cluster = policy, of_cluster
        self._plan = _Plan()

    def __len__(self) -> int:
        return len(self._plan.commands) - len(self._plan.notes)

    def add(self, queue: str, verb: Verb, now_ms: int) -> None:
        """Add a verb of one queue. `Park` is sent between two copies of its note.

        In a cluster, the outcome that the verb records goes to the recorder before the verb ends the entry.
        """
        plan = self._plan
        if self._of_cluster:
            plan.record_first += [(len(plan.commands), queue, now_ms, each) for each in verb.record_first()]
        if isinstance(verb, Park):
            self._add_park(queue, verb, now_ms)
        else:
            plan.commands.append(verb.command(self._policy, queue, now_ms))
            plan.reads.append(verb.read)

    def call(self, command: Args, read: Read | None, *, stage: int = MIDDLE, run_despite_oom: bool = False) -> None:
        """Add any other command. `read` parses its raw reply; a command without `read` has no result.

        In a cluster, the commands of one stage run side by side, and the stages one after the other. `run_despite_oom` is for a
        small command whose only key follows its name: it runs even if Redis is out of memory.
        """
        plan, place = self._plan, len(self._plan.commands)
        if stage != MIDDLE:
            plan.stages[place] = stage
        if run_despite_oom:
            plan.despite_oom.append(place)
        plan.commands.append(command)
        plan.reads.append(read)

    def watch(self, shard: int, deadlines: Mapping[str, int]) -> None:
        """Add owners of one shard to the deadline index, each with the Unix ms of its next check."""
        self.call(_commands.watch(shard, deadlines), int, run_despite_oom=True)

    def wake(self, queues: Iterable[str], trigger: TriggerName | None = None) -> None:
        """Notify the dispatchers that these queues have something to claim; one command per thousand queues of a shard.

        A single trigger's names are sent with the wake-up, so that no dispatcher has to read them. The commands run even if Redis
        is out of memory, because delivering frees memory.
        """
        by_shard: dict[int, list[str]] = {}
        for queue in queues:
            by_shard.setdefault(keys.shard_of(queue, self._policy.wake_shards), []).append(queue)
        for shard, some in by_shard.items():
            for start in range(0, len(some), QUEUES_PER_WAKE):
                self.call(_commands.wake(shard, some[start : start + QUEUES_PER_WAKE], trigger), bytes, run_despite_oom=True)

    def exchanges(self, *, tolerant: bool = False) -> Exchange[list[Any]]:
        """Send everything and empty the batch; returns one reply for each verb and command.

        Missing scripts are loaded. With `tolerant`, a corrupt key (of another type, or with an unreadable value) does not raise:
        its error (`is_corrupt`) replaces that one reply.

        Raises:
            redis.RedisError: Redis rejected a command.
        """
        plan, self._plan = self._plan, _Plan()
        if plan.record_first:
            yield from self._record_before_ending(plan, tolerant=tolerant)
        raw = yield from _in_stages(plan) if self._of_cluster else sent(plan.commands)
        denied = [place for place in plan.despite_oom if isinstance(raw[place], OutOfMemoryError)]
        if denied:
            _put(raw, denied, (yield from sent([_commands.run_despite_oom(plan.commands[place]) for place in denied])))
        for note, place in plan.notes.items():
            if isinstance(raw[note], RedisError):
                raw[place] = raw[note]
        replies = []
        for read, reply in zip(plan.reads, raw, strict=True):
            if read is None:
                continue
            if isinstance(reply, RedisError):
                if not (tolerant and is_corrupt(reply)):
                    raise reply
                replies.append(reply)
                continue
            try:
                replies.append(read(reply))
            except ValueError as exc:
                if not tolerant:
                    raise
                replies.append(unreadable(exc))
        return replies

    def _add_park(self, queue: str, verb: Park, now_ms: int) -> None:
        notes = verb.notes(self._policy, queue, now_ms)
        place = len(self._plan.commands) + len(notes)
        self._note(notes, place, FIRST)
        self.call(verb.command(self._policy, queue, now_ms), verb.read)
        self._note(notes, place, LAST)

    def _note(self, notes: Sequence[Args], place: int, stage: int) -> None:
        for note in notes:
            self._plan.notes[len(self._plan.commands)] = place
            self.call(note, None, stage=stage, run_despite_oom=True)

    def _record_before_ending(self, plan: _Plan, *, tolerant: bool) -> Exchange[None]:
        """Send outcomes to the recorder before their verbs run: in a cluster, no script reaches both entry and outcomes stream.

        A crash in between repeats an outcome and loses none.
        """
        reads, records = (Batch(self._policy, of_cluster=True) for _ in range(2))
        for _, queue, now_ms, recorded in plan.record_first:
            reads.add(queue, recorded.question, now_ms)
        found = yield from reads.exchanges(tolerant=tolerant)
        for (place, queue, now_ms, recorded), known in zip(plan.record_first, found, strict=True):
            if isinstance(known, RedisError):  # the question replaces the verb, so that it reports the same error
                plan.commands[place] = recorded.question.command(self._policy, queue, now_ms)
                continue
            record, verb = recorded.complete(known)
            plan.commands[place] = verb.command(self._policy, queue, now_ms)
            if record is not None:
                records.call(_commands.record_outcome(record), bytes, run_despite_oom=True)
        try:
            yield from records.exchanges()
        except ResponseError as exc:
            raise ResponseError(f"OUTCOMES cannot be recorded: {exc}") from exc


def _in_stages(plan: _Plan) -> Exchange[list[Any]]:
    raw: list[Any] = [None] * len(plan.commands)
    for stage in (FIRST, MIDDLE, LAST):
        places = [place for place in range(len(raw)) if plan.stages.get(place, MIDDLE) == stage]
        _put(raw, places, (yield from sent([plan.commands[place] for place in places])))
    return raw


def sent(commands: list[Args]) -> Exchange[list[Any]]:
    """Send commands and return the raw replies. If Redis, or a node of a cluster, lacks a script, all scripts are loaded.

    Only the rejected commands are sent again, so each command takes effect once.
    """
    if not commands:
        return []
    raw = yield commands
    unknown = [place for place, reply in enumerate(raw) if isinstance(reply, NoScriptError)]
    if unknown:
        yield LOAD_COMMANDS
        _put(raw, unknown, (yield [commands[place] for place in unknown]))
    return raw


def _put(raw: list[Any], places: Sequence[int], replies: Sequence[Any]) -> None:
    for place, reply in zip(places, replies, strict=True):
        raw[place] = reply
