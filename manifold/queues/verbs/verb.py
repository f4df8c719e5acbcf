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
    """A verb as a value. Its script gets the keys of the queue, the time, the policy, and the verb's fields in order.

    A verb whose script takes other arguments overrides `command`. Fanout queues use `script`, and compacted queues `ecq_script`;
    a verb for both types of queue has both scripts.
    """

    script: ClassVar[Script]
    ecq_script: ClassVar[Script]

    def command(self, policy: Policy, queue: str, now_ms: int) -> Args:
        """Build the EVALSHA command. `queue` is the queue's name; a fanout queue is named after its owner."""
        return self._call(policy, queue, now_ms, *astuple(self))

    @staticmethod
    def read(raw: Any) -> Any:
        """Parse the raw reply of the script."""
        raise NotImplementedError

    def record_first(self) -> "Sequence[Recorded]":
        """The records that must reach the recorder before the verb runs.

        Only used in a cluster, where scripts cannot send them.
        """
        return ()

    def _call(self, policy: Policy, queue: str, now_ms: int, *args: Any, others: tuple[str, ...] = ()) -> Args:
        """Build the script call with these arguments. `others` are keys in addition to those of the queue, which they follow."""
        if is_ecq(queue):
            script, queue_keys, policy_args = self.ecq_script, keys.ecq_keys(owner_of_queue(queue)), policy.ecq_numbers
        else:
            script, queue_keys, policy_args = self.script, keys.owner_keys(queue), policy.numbers
        key_count = len(queue_keys) + len(others)
        return ("EVALSHA", script.sha, key_count, *queue_keys, *others, now_ms, *policy_args, *args)


class Recorded(NamedTuple):
    """A record that is sent before its verb runs.

    `question` is a verb that reads the queue. `complete` turns the reply to it into the record (None: nothing to record) and the
    verb to run after the record is sent, which does not send the record again.
    """

    question: Verb
    complete: Callable[[Any], tuple[OutcomeRecord | EcqAck | None, Verb]]


def number(value: bytes | int) -> int | None:
    """Parse a number in a reply; None if the value is empty, which means unknown."""
    return int(value) if value != b"" else None
