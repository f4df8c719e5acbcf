"""The base of all verbs."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from msgspec import Struct
from msgspec.structs import astuple

from manifold.contracts import keys
from manifold.contracts.ecq import EcqAck
from manifold.contracts.outcomes import OutcomeRecord
from manifold.contracts.queue_names import is_ecq, owner_of_queue
from manifold.queues._policy import Policy
from manifold.queues._scripts import Args, Script


class Verb(Struct, frozen=True):
    """A verb as a value. Its script gets the queue's keys, the time and the policy, and then the verb's fields in their order.

    A verb whose script takes something else has a `command` of its own. A verb of fanout queues has a `script`, one of compacted
    queues an `ecq_script`, one that both have has both.
    """

    script: ClassVar[Script]
    ecq_script: ClassVar[Script]

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        """The verb as Redis takes it. `queue` is the name of a queue, which of a fanout queue is that of its owner."""
        return self._call(policy, queue, now_ms, *astuple(self))

    @staticmethod
    def read(raw: Any) -> Any:
        """The reply, made of what the script returns."""
        raise NotImplementedError

    def record_first(self) -> "Sequence[Recorded]":
        """Records that must reach the recorder before the verb runs. Only in a cluster, where its script cannot send them."""
        return ()

    def _call(self, policy: Policy, queue: str, now_ms: int, *args: Any, others: tuple[str, ...] = ()) -> Args:
        """The call of the script with these arguments; `others` are keys that follow those of the queue."""
        if is_ecq(queue):
            sha, own, numbers = self.ecq_script.sha, keys.ecq_keys(owner_of_queue(queue)), policy.ecq_numbers
        else:
            sha, own, numbers = self.script.sha, keys.owner_keys(queue), policy.numbers
        return ("EVALSHA", sha, len(own) + len(others), *own, *others, now_ms, *numbers, *args)


class Recorded(NamedTuple):
    """A record that is sent before its verb.

    `question` reads the queue. `complete` turns its reply into the record, or None if there is nothing to record, and the verb
    that runs then, which does not record it again.
    """

    question: Verb
    complete: Callable[[Any], tuple[OutcomeRecord | EcqAck | None, Verb]]


def number(value: bytes | int) -> int | None:
    """A number of a reply; None where it is empty, which means not known."""
    return int(value) if value != b"" else None
