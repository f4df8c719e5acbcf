"""The base class of all verbs."""

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
    """A verb as a value. Its script gets the queue's keys, the time and the policy, then the verb's fields in order.

    A verb whose script takes other arguments overrides `command`. Fanout queues use `script`, compacted queues `ecq_script`; a
    verb for both has both.
    """

    script: ClassVar[Script]
    ecq_script: ClassVar[Script]

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        """Build the EVALSHA command. `queue` is the queue's name; a fanout queue is named after its owner."""
        return self._call(policy, queue, now_ms, *astuple(self))

    @staticmethod
    def read(raw: Any) -> Any:
        """Parse what the script returns."""
        raise NotImplementedError

    def record_first(self) -> "Sequence[Recorded]":
        """Records that must reach the recorder before the verb runs. Only in a cluster, where the script cannot send them."""
        return ()

    def _call(self, policy: Policy, queue: str, now_ms: int, *args: Any, others: tuple[str, ...] = ()) -> Args:
        """Build the script call with these arguments; `others` are keys after those of the queue."""
        if is_ecq(queue):
            sha, own, numbers = self.ecq_script.sha, keys.ecq_keys(owner_of_queue(queue)), policy.ecq_numbers
        else:
            sha, own, numbers = self.script.sha, keys.owner_keys(queue), policy.numbers
        return ("EVALSHA", sha, len(own) + len(others), *own, *others, now_ms, *numbers, *args)


class Recorded(NamedTuple):
    """A record that is sent before its verb.

    `question` reads the queue. `complete` turns its reply into the record (None: nothing to record) and the verb to run then,
    which does not send the record again.
    """

    question: Verb
    complete: Callable[[Any], tuple[OutcomeRecord | EcqAck | None, Verb]]


def number(value: bytes | int) -> int | None:
    """Parse a number of a reply; None if it is empty, which means unknown."""
    return int(value) if value != b"" else None
