"""Commands on keys that belong to no single owner: triggers, payloads, watermarks, the deadline index, the outcomes stream."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from manifold.contracts import keys
from manifold.contracts.brakes import Brake, EntryTrigger
from manifold.contracts.ecq import EcqAck
from manifold.contracts.outcomes import OutcomeRecord
from manifold.queues._policy import Policy
from manifold.queues._scripts import NO_SHARED_CODE, Args, Script

QUEUE_STATS = Script("queue_stats", prepends=NO_SHARED_CODE)
TriggerName = tuple[int, str, str]  # seq, request_id, data_id
_SAVE_QUEUE_STATS = Script("save_queue_stats", prepends=NO_SHARED_CODE)
_STORE_DATA = Script("store_data", prepends=NO_SHARED_CODE)
_SETTLE_DUE = Script("settle_due", prepends=NO_SHARED_CODE)
_RUN_DESPITE_OOM = Script("run_despite_oom", prepends=NO_SHARED_CODE)
_SWAP = Script("swap", prepends=NO_SHARED_CODE)
_BRAKE = Script("brake", prepends=NO_SHARED_CODE)
_READ_BRAKES = Script("read_brakes", prepends=NO_SHARED_CODE)


def store_trigger(policy: Policy, seq: int, trigger: EntryTrigger) -> list[Args]:
    """The commands that store what all entries of a trigger share, for the retention of the entries.

    They also index the trigger by its campaign and by the end of its time window, so that its entries can be withdrawn later.
    """
    key = keys.trigger(seq)
    fields: list[str | int] = ["request_id", trigger.request_id, "data_id", trigger.data_id]
    if trigger.is_release:
        fields += ["campaign", trigger.request_id, "until", "" if trigger.until_ms is None else trigger.until_ms]
    commands: list[Args] = [("HSET", key, *fields), ("PEXPIRE", key, policy.retention_ms)]
    if trigger.is_release:
        releases = keys.releases(trigger.request_id)  # the request id of a release is its campaign
        commands += [("ZADD", releases, seq, seq), ("PEXPIRE", releases, policy.retention_ms)]
    if trigger.until_ms is not None:
        commands.append(("ZADD", keys.WINDOWS, trigger.until_ms, seq))
    return commands


def brake(brakes: Iterable[tuple[str, Brake | None, Brake | None]], *, are_all: bool = False) -> Args:
    """Set the brakes of some campaigns. Each item of `brakes` names a campaign, its new brake, and its old brake.

    If the new brake is None, the old one is removed. If the old brake is given, it is only replaced while it is the current one;
    if it is None, any brake with a smaller seq than the new one is replaced. `are_all` says that there are no other brakes, so
    that the brakes count as loaded from now on. The reply is the number of brakes that have changed.
    """
    args: list[object] = []
    for campaign, new, old in brakes:
        args += (campaign, "" if new is None else new.to_wire(), "" if old is None else old.to_wire())
    return ("EVALSHA", _BRAKE.sha, 2, keys.BRAKES, keys.BRAKES_VERSION, "1" if are_all else "", *args)


def read_brakes() -> Args:
    """Read the brakes of all campaigns, their version, and the time of Redis."""
    return ("EVALSHA", _READ_BRAKES.sha, 2, keys.BRAKES, keys.BRAKES_VERSION)


def store_data(policy: Policy, data_id: str, payload: bytes) -> Args:
    """Store a payload under its data_id for the retention. The reply is `stored`, `same` or `differs`."""
    return ("EVALSHA", _STORE_DATA.sha, 1, keys.data(data_id), payload, policy.retention_ms)


def record_outcome(record: OutcomeRecord | EcqAck) -> Args:
    """Send an outcome, or an acknowledgement of a compacted queue, to the recorder."""
    return ("XADD", keys.OUTCOMES, "*", "o", record.to_wire())


def wake(shard: int, owners: Sequence[str], trigger: TriggerName | None = None) -> Args:
    """Notify the dispatchers that these owners of one shard have something to claim.

    If `trigger` is given, everything that they can claim belongs to this trigger.
    """
    fields = ["owners", "\n".join(owners)]
    if trigger is not None:
        seq, request_id, data_id = trigger
        fields += ["trigger", f"{seq} {request_id} {data_id}"]  # names contain no spaces
    return ("XADD", keys.wake(shard), "*", *fields)


def watch(shard: int, deadlines: Mapping[str, int]) -> Args:
    """Add owners of one shard to the deadline index, each with the Unix ms at which its entry in flight may be overdue."""
    scores_and_members: list[str | int] = []
    for owner, deadline_ms in deadlines.items():
        scores_and_members += [deadline_ms, owner]
    return ("ZADD", keys.deadlines(shard), *scores_and_members)


def settle_due(shard: int, owners: Sequence[str], before_ms: int) -> Args:
    """Remove owners of one shard from the deadline index, except those whose deadline is after `before_ms` (Unix ms)."""
    return ("EVALSHA", _SETTLE_DUE.sha, 1, keys.deadlines(shard), before_ms, *owners)


def run_despite_oom(command: Args) -> Args:
    """Wrap a command so that it runs even if Redis is out of memory. The command's only key must follow its name."""
    name, key, *rest = command
    return ("EVALSHA", _RUN_DESPITE_OOM.sha, 1, key, name, *rest)


def swap(key: str, old: bytes, new: bytes) -> Args:
    """Replace the value `old` of a string key by `new`. The reply is 1, or 0 if the value is not `old`.

    An empty value stands for a missing key.
    """
    return ("EVALSHA", _SWAP.sha, 1, key, old, new)


def save_queue_stats(at_ms: int, fields: Mapping[str, str]) -> Args:
    """Save the statistics of a scan that began at `at_ms` (Unix ms), unless Redis has those of a later scan."""
    names_and_values = chain.from_iterable(fields.items())
    return ("EVALSHA", _SAVE_QUEUE_STATS.sha, 1, keys.QUEUE_STATS, at_ms, *names_and_values)
