"""Every verb as a command: which script, which keys, which arguments. Pure; `_batch` and `_loader` send them."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from importlib.resources import files
from typing import Any

from contracts import keys
from contracts.outcomes import CODES, Outcome, OutcomeRecord
from contracts.settings import Settings

_LUA = files("queues") / "lua"  # not by a path: on a cluster the code is in an archive
_SHARED = (_LUA / "_owner.lua").read_text()

Args = tuple[Any, ...]


class Script:
    """One `.lua` file with what the verbs share in front of it, and its SHA-1 as Redis knows it.

    Only one that `adds` is refused where Redis is out of memory: delivering what is queued is what makes room.
    """

    def __init__(self, name: str, *, shared: bool = True, adds: bool = False, calls: str = "", before: str = "") -> None:
        self.name = name
        head = ("" if adds else "#!lua flags=allow-oom\n") + _SHARED if shared else ""
        if calls:  # another verb, as a function of its arguments
            head += f"local function {calls}(ARGV)\n{(_LUA / f'{calls}.lua').read_text()}end\n"
        if before:  # a short cut past all of it
            head = (_LUA / f"{before}.lua").read_text() + head
        self.text = head + (_LUA / f"{name}.lua").read_text()
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


ENQUEUE, EXPRESS = Script("enqueue", adds=True, before="_fresh"), Script("express", adds=True, calls="enqueue")
CLAIM, ACK, OVER, END, LOOK, RELEASE, TOUCH, PARK, UNPARK, ERASE = (
    Script(n) for n in ("claim", "ack", "over", "end", "look", "release", "touch", "park", "unpark", "erase")
)
STORE_DATA, SETTLE_DUE, CENSUS, INSIST, SWAP = (
    Script(n, shared=False) for n in ("store_data", "settle_due", "census", "insist", "swap")
)
SCRIPTS = (
    *(ENQUEUE, EXPRESS, CLAIM, ACK, OVER, END, LOOK, RELEASE, TOUCH, PARK, UNPARK, ERASE),
    *(STORE_DATA, SETTLE_DUE, CENSUS, INSIST, SWAP),
)


class ReleaseReason(StrEnum):
    """Why an entry goes back to pending."""

    DEADLINE = "deadline"  # the vehicle did not acknowledge in time
    UNSUBSCRIBED = "unsubscribed"  # the broker had nobody to give it to; no attempt is counted
    LOST = "lost"  # the session that held it is gone
    CUT = "cut"  # the connection broke before the broker confirmed it; no attempt is counted, since others may have cut it off
    UNSENT = "unsent"  # it was never given to the broker; no attempt is counted


@dataclass(frozen=True)
class Policy:
    """What the queues need to know of the settings. Durations in milliseconds."""

    presence_ms: int
    retention_ms: int
    ack_deadline_ms: int
    ack_deadline_max_ms: int
    wake_shards: int
    compaction: bool

    @classmethod
    def of(cls, settings: Settings) -> "Policy":
        """The policy that these settings describe."""
        return cls(
            presence_ms=round(settings.presence_seconds * 1000),
            retention_ms=round(settings.retention_days * 86_400_000),
            ack_deadline_ms=round(settings.ack_deadline_seconds * 1000),
            ack_deadline_max_ms=round(settings.ack_deadline_max_seconds * 1000),
            wake_shards=settings.wake_shards,
            compaction=settings.compaction == "request_id",
        )

    @cached_property
    def deadlines(self) -> str:
        """Milliseconds that the first, second, … attempt has: doubling up to the maximum, which serves for all further ones."""
        waits = [self.ack_deadline_ms]
        while waits[-1] < self.ack_deadline_max_ms:
            waits.append(min(waits[-1] * 2, self.ack_deadline_max_ms))
        return ",".join(map(str, waits))

    @cached_property
    def terms(self) -> str:
        """The deadlines and, last, the retention, as the verbs take them."""
        return f"{self.deadlines},{self.retention_ms}"


def _evalsha(script: Script, owner: str, *args: Any) -> Args:
    owner_keys = keys.owner_keys(owner)
    return ("EVALSHA", script.sha, len(owner_keys), *owner_keys, *args)


def _recording(script: Script, owner: str, *args: Any) -> Args:
    """The same, with the outcomes stream: not for a cluster."""
    return ("EVALSHA", script.sha, 8, *keys.owner_keys(owner), keys.OUTCOMES, *args)


def enqueue(policy: Policy, owner: str, entries: Sequence[tuple[int, str]], now_ms: int) -> Args:
    """Queue entries (seq, request_id) of one owner, oldest first."""
    return offer(policy, owner, flat(policy, entries), now_ms)


def offer(policy: Policy, owner: str, parts: Sequence[Any], now_ms: int) -> Args:
    """The same, of what `flat` makes of the entries."""
    return _evalsha(ENQUEUE, owner, now_ms, policy.presence_ms, "1" if policy.compaction else "0", *parts)


def flat(policy: Policy, entries: Iterable[tuple[int, str]]) -> list[Any]:
    """Entries (seq, request_id) as `offer` takes them: seq after seq, each with its request_id where compaction is on."""
    return [part for entry in entries for part in entry] if policy.compaction else [seq for seq, _ in entries]


def express(
    policy: Policy, owner: str, seq: int, request_id: str, data_id: str, digest: str, now_ms: int, loading: bytes
) -> Args:
    """Queue the one entry of one trigger, if the queues are those of `loading` and the digest is registered for it; wake one."""
    shared = (keys.LOADED, keys.dedupe(digest), keys.wake(keys.shard_of(owner, policy.wake_shards)))
    all_keys = (*keys.owner_keys(owner), *shared)
    flag = "1" if policy.compaction else "0"
    args = (now_ms, policy.presence_ms, flag, seq, owner, request_id, data_id, loading)
    return ("EVALSHA", EXPRESS.sha, len(all_keys), *all_keys, *args)


def claim(policy: Policy, owner: str, now_ms: int) -> Args:
    """Put the oldest pending entry in flight."""
    return _evalsha(CLAIM, owner, now_ms, policy.presence_ms, policy.terms)


def ack(
    policy: Policy, record: OutcomeRecord, now_ms: int, *, request_id: str = "", claim_next: bool = True, told: bool = False
) -> Args:
    """End an entry for good, however it stands, and claim the next one. The recorder gets the outcome, unless it was `told`."""
    key, flag = request_id if policy.compaction else "", "1" if claim_next else "0"
    args = (now_ms, policy.presence_ms, policy.terms, record.seq, key, flag, CODES[record.outcome])
    if told:
        return _evalsha(ACK, record.vin, *args)
    known = ("" if number is None else number for number in (record.dispatched_ms, record.attempts))
    return _recording(ACK, record.vin, *args, record.to_be_completed(), *known)


def over(policy: Policy, owner: str, now_ms: int) -> Args:
    """Which entries must not be sent any more."""
    return _evalsha(OVER, owner, now_ms, policy.presence_ms, policy.terms)


def end(policy: Policy, owner: str, ends: Iterable[tuple[int, Outcome]], now_ms: int) -> Args:
    """End entries (seq, how) that are not in flight, and tell nobody; what is in flight ends so instead of being sent again."""
    flat = (part for seq, outcome in ends for part in (seq, CODES[outcome], ""))
    return _evalsha(END, owner, now_ms, policy.presence_ms, policy.terms, "0", *flat)


def end_as(
    policy: Policy, owner: str, records: Iterable[OutcomeRecord], now_ms: int, *, claim_next: bool = False, told: bool = False
) -> Args:
    """End entries as these outcomes say. The recorder gets those of entries that end only now, unless it was `told`."""
    verb = _evalsha if told else _recording
    flat = (part for record in records for part in (record.seq, CODES[record.outcome], "" if told else record.to_wire()))
    return verb(END, owner, now_ms, policy.presence_ms, policy.terms, "1" if claim_next else "0", *flat)


def look(owner: str, seq: int) -> Args:
    """What is known of an entry that is about to end."""
    return _evalsha(LOOK, owner, seq)


def release(policy: Policy, owner: str, seq: int, now_ms: int, reason: ReleaseReason, claimed_ms: int | None = None) -> Args:
    """Put what is in flight back to pending."""
    return _evalsha(RELEASE, owner, now_ms, seq, reason.value, "" if claimed_ms is None else claimed_ms, policy.presence_ms)


def touch(policy: Policy, owner: str, now_ms: int, claim_next: bool, *sign: Any) -> Args:
    """Note what is known of a vehicle's connection; `sign` as touch.lua takes it."""
    return _evalsha(TOUCH, owner, now_ms, policy.presence_ms, policy.terms, "1" if claim_next else "0", *sign)


def park(policy: Policy, owner: str, seq: int, now_ms: int) -> Args:
    """Let the entry in flight step aside until its data comes; claim the next one."""
    return _evalsha(PARK, owner, now_ms, policy.presence_ms, policy.terms, seq)


def waits(policy: Policy, owner: str, seq: int, data_id: str, now_ms: int) -> list[Args]:
    """Note that `owner` has this entry parked for this data. The note goes with the retention, as the entry does."""
    key = keys.waiting_for(data_id)
    return [("SADD", key, f"{owner} {seq}"), ("PEXPIRE", key, policy.retention_ms), ("ZADD", keys.PARKED, now_ms, data_id)]


def unpark(policy: Policy, owner: str, seqs: Iterable[str | int], now_ms: int) -> Args:
    """These parked entries of one owner take their places again; none named: all of them."""
    return _evalsha(UNPARK, owner, now_ms, policy.presence_ms, *seqs)


def erase(owner: str, before: int) -> Args:
    """Let everything of an owner go that was accepted before this seq; nobody is told."""
    return _evalsha(ERASE, owner, before)


def store_trigger(policy: Policy, seq: int, request_id: str, data_id: str) -> list[Args]:
    """Keep what a trigger says, for as long as its entries may wait."""
    key = keys.trigger(seq)
    return [("HSET", key, "request_id", request_id, "data_id", data_id), ("PEXPIRE", key, policy.retention_ms)]


def store_data(policy: Policy, data_id: str, payload: bytes) -> Args:
    """Keep a payload under its data_id."""
    return ("EVALSHA", STORE_DATA.sha, 1, keys.data(data_id), payload, policy.retention_ms)


def deadline(policy: Policy, owner: str, deadline_ms: int) -> Args:
    """Note when to look whether what is in flight is overdue."""
    return ("ZADD", keys.deadlines(keys.shard_of(owner, policy.wake_shards)), deadline_ms, owner)


def insist(command: Args) -> Args:
    """The same command (of one key, which follows its name), carried out also where Redis is out of memory."""
    name, key, *rest = command
    return ("EVALSHA", INSIST.sha, 1, key, name, *rest)


def settle_due(shard: int, owners: Sequence[str], before_ms: int) -> Args:
    """Take owners out of the deadline index, except those that were put in again for a time after `before_ms`."""
    return ("EVALSHA", SETTLE_DUE.sha, 1, keys.deadlines(shard), before_ms, *owners)


def swap(key: str, before: bytes, after: bytes) -> Args:
    """Let `after` take the place of `before` in a string; empty: nothing."""
    return ("EVALSHA", SWAP.sha, 1, key, before, after)
