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
    """The commands of a batch. The other fields refer to a command by its index in `commands`.

    A note is a command without a result of its own that belongs to a verb: see `Park`.
    """

    commands: list[Args] = field(default_factory=list)
    reads: list[Read | None] = field(default_factory=list)  # parses the reply of each command; None for a note, without result
    stages: dict[int, int] = field(default_factory=dict)  # index → stage, except for commands of the middle stage
    despite_oom: list[int] = field(default_factory=list)  # indices of commands that run even if Redis is out of memory
    notes: dict[int, int] = field(default_factory=dict)  # index of a note → index of its verb, which reports the note's error
    # Only in a cluster: index and queue of a verb, its now_ms, and a record that must be sent before the verb runs.
    record_first: list[tuple[int, str, int, Recorded]] = field(default_factory=list)


class Batch:
    """Collects verbs and commands. A driver sends them together and returns the replies in the order of the calls.

    A batch is not a transaction: each verb is atomic, but the batch as a whole is not.
    """

    def __init__(self, policy: Policy, *, of_cluster: bool) -> None:
        self._policy, self._of_cluster = policy, of_cluster
        self._plan = _Plan()

    def __len__(self) -> int:
        return len(self._plan.commands) - len(self._plan.notes)

    def add(self, queue: str, verb: Verb, now_ms: int) -> None:
        """Add a verb of one queue. The verb `Park` is sent between two copies of its note.

        In a cluster, the outcome that a verb records is sent to the recorder before the verb ends the entry.
        """
        plan = self._plan
        if self._of_cluster:
            plan.record_first += [(len(plan.commands), queue, now_ms, record) for record in verb.record_first()]
        if isinstance(verb, Park):
            self._add_park(queue, verb, now_ms)
        else:
            plan.commands.append(verb.command(self._policy, queue, now_ms))
            plan.reads.append(verb.read)

    def call(self, command: Args, read: Read | None, *, stage: int = MIDDLE, run_despite_oom: bool = False) -> None:
        """Add a command that is not a verb. `read` parses its raw reply; with None, the command has no result.

        In a cluster, the commands of one stage run concurrently, and the stages one after the other. With `run_despite_oom`, the
        command runs even if Redis is out of memory; it must be small, and its only key must follow its name.
        """
        plan, index = self._plan, len(self._plan.commands)
        if stage != MIDDLE:
            plan.stages[index] = stage
        if run_despite_oom:
            plan.despite_oom.append(index)
        plan.commands.append(command)
        plan.reads.append(read)

    def watch(self, shard: int, deadlines: Mapping[str, int]) -> None:
        """Add owners of one shard to the deadline index. `deadlines` gives the Unix ms of each owner's next check."""
        self.call(_commands.watch(shard, deadlines), int, run_despite_oom=True)

    def wake(self, queues: Iterable[str], trigger: TriggerName | None = None) -> None:
        """Notify the dispatchers that these queues have something to claim; one command per thousand queues of a shard.

        If the wake-up is about a single trigger, its names are sent too, so that no dispatcher has to read them. The commands run
        even if Redis is out of memory, because delivering frees memory.
        """
        by_shard: dict[int, list[str]] = {}
        for queue in queues:
            by_shard.setdefault(keys.shard_of(queue, self._policy.wake_shards), []).append(queue)
        for shard, names in by_shard.items():
            for start in range(0, len(names), QUEUES_PER_WAKE):
                command = _commands.wake(shard, names[start : start + QUEUES_PER_WAKE], trigger)
                self.call(command, bytes, run_despite_oom=True)

    def exchanges(self, *, tolerant: bool = False) -> Exchange[list[Any]]:
        """Send everything and empty the batch. Returns the parsed replies of the verbs and commands, in order.

        Missing scripts are loaded. With `tolerant`, a corrupt key (of another type, or with an unreadable value) does not raise:
        the reply of its verb or command is then an error for which `is_corrupt` is true.

        Raises:
            redis.RedisError: Redis rejected a command.
        """
        plan, self._plan = self._plan, _Plan()
        if plan.record_first:
            yield from self._record_before_ending(plan, tolerant=tolerant)
        if self._of_cluster:
            raw = yield from _send_in_stages(plan)
        else:
            raw = yield from send_commands(plan.commands)
        denied = [index for index in plan.despite_oom if isinstance(raw[index], OutOfMemoryError)]
        if denied:
            wrapped = [_commands.run_despite_oom(plan.commands[index]) for index in denied]
            new_replies = yield from send_commands(wrapped)
            _replace(raw, denied, new_replies)
        for note_index, verb_index in plan.notes.items():
            if isinstance(raw[note_index], RedisError):  # the verb reports the error of its note
                raw[verb_index] = raw[note_index]
        return _parse(plan.reads, raw, tolerant=tolerant)

    def _add_park(self, queue: str, verb: Park, now_ms: int) -> None:
        """Add the verb between two copies of the commands that write its note."""
        notes = verb.notes(self._policy, queue, now_ms)
        verb_index = len(self._plan.commands) + len(notes)  # the first copy precedes the verb
        self._add_notes(notes, verb_index, FIRST)
        self.call(verb.command(self._policy, queue, now_ms), verb.read)
        self._add_notes(notes, verb_index, LAST)

    def _add_notes(self, notes: Sequence[Args], verb_index: int, stage: int) -> None:
        for note in notes:
            self._plan.notes[len(self._plan.commands)] = verb_index
            self.call(note, None, stage=stage, run_despite_oom=True)

    def _record_before_ending(self, plan: _Plan, *, tolerant: bool) -> Exchange[None]:
        """Send outcomes to the recorder before their verbs run.

        This is necessary in a cluster, where no script can reach both the entry and the outcomes stream. A crash between outcome
        and verb repeats an outcome and loses none.
        """
        questions = Batch(self._policy, of_cluster=True)  # they read what the records need
        for _, queue, now_ms, recorded in plan.record_first:
            questions.add(queue, recorded.question, now_ms)
        replies = yield from questions.exchanges(tolerant=tolerant)
        records = Batch(self._policy, of_cluster=True)
        for (index, queue, now_ms, recorded), reply in zip(plan.record_first, replies, strict=True):
            if isinstance(reply, RedisError):  # send the question again in place of the verb, so that it reports the same error
                plan.commands[index] = recorded.question.command(self._policy, queue, now_ms)
                continue
            record, verb = recorded.complete(reply)
            plan.commands[index] = verb.command(self._policy, queue, now_ms)
            if record is not None:
                records.call(_commands.record_outcome(record), bytes, run_despite_oom=True)
        try:
            yield from records.exchanges()
        except ResponseError as exc:
            raise ResponseError(f"OUTCOMES cannot be recorded: {exc}") from exc


def _send_in_stages(plan: _Plan) -> Exchange[list[Any]]:
    """Send the commands stage by stage, and return the raw replies in the order of the commands."""
    raw: list[Any] = [None] * len(plan.commands)
    for stage in (FIRST, MIDDLE, LAST):
        indices = [index for index in range(len(raw)) if plan.stages.get(index, MIDDLE) == stage]
        replies = yield from send_commands([plan.commands[index] for index in indices])
        _replace(raw, indices, replies)
    return raw


def send_commands(commands: list[Args]) -> Exchange[list[Any]]:
    """Send commands and return the raw replies. If Redis, or a node of a cluster, lacks a script, all scripts are loaded.

    Only the commands whose script was missing are sent again, so each command takes effect once.
    """
    if not commands:
        return []
    raw = yield commands
    without_script = [index for index, reply in enumerate(raw) if isinstance(reply, NoScriptError)]
    if without_script:
        yield LOAD_COMMANDS
        new_replies = yield [commands[index] for index in without_script]
        _replace(raw, without_script, new_replies)
    return raw


def _replace(raw: list[Any], indices: Sequence[int], replies: Sequence[Any]) -> None:
    """Put `replies` into `raw`, at these indices in order."""
    for index, reply in zip(indices, replies, strict=True):
        raw[index] = reply


def _parse(reads: Sequence[Read | None], raw: Sequence[Any], *, tolerant: bool) -> list[Any]:
    """Parse the raw reply of each command that has a result.

    Raises the error of a command, except that with `tolerant`, the error of a corrupt key takes the place of its reply.
    """
    replies = []
    for read, reply in zip(reads, raw, strict=True):
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
