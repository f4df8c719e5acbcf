"""What all verbs have in common."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from msgspec import Struct

from contracts import keys
from contracts.ecq import EcqAck
from contracts.outcomes import OutcomeRecord
from contracts.queue_names import is_ecq, owner_of_queue
from queues._policy import Policy
from queues._scripts import Args, Script


class Verb(Struct, frozen=True):
    """A verb as a value. Its script gets the queue's keys, the time and the policy before anything of its own.

    A verb of fanout queues has a `script`, one of compacted queues an `ecq_script`, one that both have has both.
    """

    script: ClassVar[Script]
    ecq_script: ClassVar[Script]

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        """The verb as Redis takes it. `queue` is the name of a queue, which of a fanout queue is that of its owner."""
        return self._call(policy, queue, now_ms)

    @staticmethod
    def read(raw: Any) -> Any:
        """The reply, of what the script returns."""
        raise NotImplementedError

    def record_first(self) -> "Sequence[Recorded]":
        """What the recorder has to be told before the verb is carried out, where its script cannot: in a cluster."""
        return ()

    def _call(self, policy: Policy, queue: str, now_ms: int, *args: Any, others: tuple[str, ...] = ()) -> Args:
        """The script with these arguments; `others` are the keys after those of the queue."""
        if is_ecq(queue):
            sha, own = self.ecq_script.sha, keys.ecq_keys(owner_of_queue(queue))
        else:
            sha, own = self.script.sha, keys.owner_keys(queue)
        return ("EVALSHA", sha, len(own) + len(others), *own, *others, now_ms, *policy.numbers, *args)


class Recorded(NamedTuple):
    """A record that goes ahead of its verb.

    `question` asks the queue; `complete` makes of its answer the record, or None where there is none to be made, and the verb
    that is carried out then, which does not hand it on.
    """

    question: Verb
    complete: Callable[[Any], tuple[OutcomeRecord | EcqAck | None, Verb]]


def number(value: bytes | int) -> int | None:
    """A number of a reply; None where it is empty: not known."""
    return int(value) if value != b"" else None
