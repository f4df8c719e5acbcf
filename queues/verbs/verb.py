"""What all verbs have in common."""

from typing import Any, ClassVar

from msgspec import Struct

from contracts import keys
from queues._policy import Policy
from queues._scripts import Args, Script


class Verb(Struct, frozen=True):
    """A verb as a value. Its script gets the owner's keys, the time and the policy before anything of its own."""

    script: ClassVar[Script]

    def command(self, policy: Policy, owner: str, now_ms: int) -> Args:
        """The verb as Redis takes it."""
        return self._call(policy, owner, now_ms)

    @staticmethod
    def read(raw: Any) -> Any:
        """The reply, of what the script returns."""
        raise NotImplementedError

    def _call(self, policy: Policy, owner: str, now_ms: int, *args: Any, others: tuple[str, ...] = ()) -> Args:
        """The script with these arguments; `others` are the keys after those of the owner."""
        count = keys.OWNER_KEYS + len(others)
        return ("EVALSHA", self.script.sha, count, *keys.owner_keys(owner), *others, now_ms, *policy.numbers, *args)


def number(value: bytes | int) -> int | None:
    """A number of a reply; None where it is empty: not known."""
    return int(value) if value != b"" else None
