"""Every Redis key. The hash tags keep all keys of one owner in one cluster slot."""

import zlib
from binascii import crc_hqx
from collections.abc import Callable
from itertools import count

from manifold.contracts.names import DataId, Owner

LOADED = "queues:loaded"  # set while the queues contain everything pending; missing after Redis lost its data
QUEUE_STATS = "queue_stats"  # hash: queue statistics of the last full scan
QUEUE_STATS_LEASE = "queue_stats:lease"  # lease of the scanning process
FORMER_QUEUE_STATS = "census"  # key of an earlier version; contains vehicle names
OUTCOMES = "outcomes"  # stream: the dispatcher's decisions, until the recorder has them on disk
OUTCOMES_GROUP = "recorders"
WAKE_GROUP = "dispatchers"
PARKED = "parked"  # sorted set: data id → time when an entry was last parked for it
RECONCILE_LEASE = "reconcile:lease"  # set while the last comparison with the broker's sessions is recent enough
REVOKED_VEHICLES = "revoked"  # hash VIN → Unix seconds until which EMQX bans it
POPULATE_LOCK = "lock:populate"  # lock of the process that compares the lake with the queues
POPULATED = "populated"  # snapshot of the ids table up to which every pending entry was offered to the queues
# Hash node → seq: up to which seq the lake contained each recorder's messages when the queues were last rebuilt from the lake.
REBUILT_UP_TO = "queues:taken"
ECQ_POPULATED = "populated:"  # prefix, followed by a table: like POPULATED, for index and state of compacted queues
BRAKES = "brakes"  # hash campaign → `<seq> <order>`: whether its entries may be sent
BRAKES_VERSION = "{brakes}:version"  # string: changes with each change of BRAKES; missing while BRAKES is not loaded
WINDOWS = "windows"  # sorted set seq → Unix ms at which the time window of this trigger's vehicles ends
DONE_PRUNED = "done:pruned"  # snapshot of the outcomes table up to which the done sets are pruned

OF_OWNERS = "q:{"  # prefix of every key of an owner
OWNER_KEYS, ECQ_KEYS = 7, 8  # lengths of `owner_keys` and `ecq_keys`
# Inserted before an owner that begins with `}`, because its hash tag would be empty and its keys would lie in different slots.
# No name contains this character.
_MARK = "\x01"
_SLOTS, _SLOT_RANGES = 16384, 64  # cluster slots, and the number of equal ranges of them that have a marker each


def loaded_marks(*, of_cluster: bool) -> list[str]:
    """Return `LOADED`; in a cluster, also one marker per slot range, so that the data loss of any master is noticed."""
    return _with_copies(LOADED, of_cluster=of_cluster)


def watermark_keys(node: int, *, of_cluster: bool) -> list[str]:
    """Return the watermark keys `handed:<node>`; in a cluster, also one per slot range, in the order of `loaded_marks`.

    Each watermark is `<load_id> <seq>`: while `LOADED` has the value `load_id`, the queues contain all messages of this
    recorder up to `seq`. The watermark is written after the entries, so if Redis loses its newest writes, it loses the
    watermark, too.
    """
    return _with_copies(f"handed:{node}", of_cluster=of_cluster)


def _with_copies(key: str, *, of_cluster: bool) -> list[str]:
    """Return the key; in a cluster, followed by a copy for each slot range: the key with a hash tag of that range."""
    if not of_cluster:
        return [key]
    copies = [f"{key}:{{{tag}}}" for tag in _TAGS]
    return [key, *copies]


def _first_tag_in(slot_range: int) -> int:
    """Return the smallest number whose cluster slot lies in this slot range."""
    return next(number for number in count() if _slot_range_of(number) == slot_range)


def _slot_range_of(number: int) -> int:
    """Return the index of the slot range in which the cluster slot of the number's digits lies."""
    slot = crc_hqx(str(number).encode(), 0) % _SLOTS  # CRC-16/XMODEM, as in Redis
    return slot // (_SLOTS // _SLOT_RANGES)


_TAGS = [_first_tag_in(slot_range) for slot_range in range(_SLOT_RANGES)]


def _prefix_of(owner: Owner | str) -> str:
    """Return the beginning of all keys of the owner: `q:{<owner>}:`."""
    mark = _MARK if owner[:1] == "}" else ""
    return f"{OF_OWNERS}{mark}{owner}}}:"


def owner_of(key: str) -> tuple[Owner, str]:
    """Return the owner of a key, and the kind of the key, such as `pending` or `ecq:pending`."""
    owner, _, kind = key.removeprefix(OF_OWNERS).removeprefix(_MARK).rpartition("}:")
    return Owner(owner), kind


def _of_owner(kind: str) -> Callable[[Owner | str], str]:
    """Return the function that builds the key of this kind of an owner."""
    return lambda owner: f"{_prefix_of(owner)}{kind}"


pending = _of_owner("pending")  # sorted set seq → seq: unacknowledged entries, including the one in flight
parked = _of_owner("parked")  # sorted set seq → seq: pending entries whose data has not arrived
# Hash seq, published_at, attempts, deadline, send_by (Redis clock): the entry awaiting the vehicle's acknowledgement.
inflight = _of_owner("inflight")
# Hash with the known connection state: connected, since, expiry, heard, and subscribed (when the subscription was seen, or `no`).
# The hash expires. It has the field `passing` if no entry waited for the owner when the owner was seen, because anybody may
# connect under any name.
presence = _of_owner("presence")
compaction = _of_owner("keys")  # hash compaction key → seq; exists only if compaction is on
attempts = _of_owner("attempts")  # hash seq → attempts, for entries that were published and released again
done = _of_owner("done")  # sorted set seq → seq of recently ended entries, until the lake has their outcome
ecq_inflight = _of_owner("ecq:inflight")  # hash: the in-flight entry of an owner's compacted queue
ecq_messages = _of_owner("ecq:messages")  # hash seq → key, NUL, payload: messages of an owner's compacted queue


def owner_keys(owner: Owner | str) -> list[str]:
    """Return all keys of one owner, in the order of every Lua verb's KEYS."""
    q = _prefix_of(owner)
    return [f"{q}pending", f"{q}inflight", f"{q}presence", f"{q}keys", f"{q}done", f"{q}parked", f"{q}attempts"]


def rebuilt_field(node: int, *, of_ecq: bool = False) -> str:
    """Return a recorder's field in REBUILT_UP_TO: for its triggers, or with `of_ecq` for its ECQ stream."""
    return f"ecq/{node}" if of_ecq else str(node)


def ecq_keys(owner: Owner | str) -> list[str]:
    """Return all keys of an owner's compacted queue, in the order of its Lua verbs' KEYS; see docs/reference/redis.md."""
    q = _prefix_of(owner)
    e = f"{q}ecq:"
    return [
        f"{e}pending",
        f"{e}inflight",
        f"{q}presence",
        f"{e}keys",
        f"{e}delivered",
        f"{e}messages",
        f"{e}attempts",
        f"{e}state",
    ]


def trigger(seq: int) -> str:
    """Hash with request_id and data_id of a trigger; for a release, also campaign and until. Expires with the retention."""
    return f"t:{seq}"


def releases(campaign: str) -> str:
    """Sorted set seq → seq: the triggers of a campaign that may have entries; expires with the newest trigger's retention."""
    return f"releases:{campaign}"


def data(data_id: DataId | str) -> str:
    """String: the payload; expires with the retention."""
    return f"d:{data_id}"


def waiting_for(data_id: DataId | str) -> str:
    """Set of `<owner> <seq>`: entries parked for this data."""
    return f"p:{data_id}"


def dedupe(digest: str) -> str:
    """String: the seq of the trigger with this digest; expires with the dedupe window."""
    return f"dedupe:{digest}"


def recorders(node: int | str) -> str:
    """Hash `<place>.<epoch>` → claim as JSON: the processes that claim this node number, or that claim to be the campaigner."""
    return f"recorders:{node}"


def populated(table: str) -> str:
    """String: the snapshot of this ECQ table up to which everything was offered to the queues."""
    return f"{ECQ_POPULATED}{table}"


def shard_of(owner: Owner | str, shards: int) -> int:
    """Return the shard of an owner, for wake-up streams and deadline indexes."""
    return zlib.crc32(owner.encode()) % shards


def wake(shard: int) -> str:
    """Stream of owners with new entries, many per record; the dispatchers read it as a consumer group.

    All shards share one cluster slot, so that one call can wait for all of them. One slot suffices, because records are few and
    each names many owners.
    """
    return f"{{wake}}:{shard}"


def deadlines(shard: int) -> str:
    """Sorted set owner → Unix milliseconds at which to check whether its in-flight entry is overdue."""
    return f"deadlines:{shard}"
