"""Every Redis key. The braces keep all keys of one owner in one cluster slot."""

import zlib
from binascii import crc_hqx
from collections.abc import Callable
from itertools import count

from manifold.contracts.names import DataId, Owner

LOADED = "queues:loaded"  # set while the queues hold everything pending; gone when Redis was wiped
QUEUE_STATS = "queue_stats"  # hash: the queue statistics, as the last walk over all keys has counted it
QUEUE_STATS_LEASE = "queue_stats:lease"  # who walks
FORMER_QUEUE_STATS = "census"  # which an earlier version has left behind, with names of vehicles
OUTCOMES = "outcomes"  # stream: what the dispatcher decided, until the recorder has it on disk
OUTCOMES_GROUP = "recorders"
WAKE_GROUP = "dispatchers"
PARKED = "parked"  # sorted set: data id → when an entry was last parked for it
RECONCILE_LEASE = "reconcile:lease"  # set while the last comparison with the broker's sessions is fresh enough
REVOKED_VEHICLES = "revoked"  # hash VIN → Unix seconds: until when EMQX is to ban it
POPULATE_LOCK = "lock:populate"  # held by whoever compares the lake with the queues
POPULATED = "populated"  # snapshot of the ids table up to which everything left over was offered to the queues
TAKEN = "queues:taken"  # hash node → seq: what of each recorder the lake had, when the queues were filled from it the last time
ECQ_POPULATED = "populated:"  # + table: the same of index and state of compacted queues
DONE_PRUNED = "done:pruned"  # snapshot of the outcomes table up to which the done sets are pruned

OF_OWNERS = "q:{"  # how every key of an owner begins
OWNER_KEYS, ECQ_KEYS = 7, 8  # how many `owner_keys` and `ecq_keys` give
_MARK = "\x01"  # before an owner that begins with `}`, whose keys would lie in several slots; no name has it
_SLOTS, _PARTS = 16384, 64  # of a cluster; parts of the slots that each have a mark of their own


def loaded_marks(*, of_cluster: bool) -> list[str]:
    """`LOADED`; in a cluster also one like it in every part of the slots, so that a master that lost its data is noticed."""
    return _in_each_part(LOADED, of_cluster)


def handed_marks(node: int, *, of_cluster: bool) -> list[str]:
    """`handed:<node>`; in a cluster also one in every part of the slots, as the marks of `loaded_marks` are, in the same order.

    Each holds `<loading> <seq>`: everything of this recorder up to `seq` is in the queues, which were loaded when `LOADED` says.
    A Redis that lost its newest writes has lost those of the mark, too: so it says itself what it lacks.
    """
    return _in_each_part(f"handed:{node}", of_cluster)


def _in_each_part(mark: str, of_cluster: bool) -> list[str]:
    return [mark, *(f"{mark}:{{{tag}}}" for tag in _TAGS)] if of_cluster else [mark]


def _tag_in(part: int) -> int:
    """The first number whose slot (CRC-16/XMODEM, as Redis has it) lies in this part of the slots."""
    return next(n for n in count() if crc_hqx(str(n).encode(), 0) % _SLOTS * _PARTS // _SLOTS == part)


_TAGS = [_tag_in(part) for part in range(_PARTS)]


def _of(owner: Owner | str) -> str:
    return f"{OF_OWNERS}{owner}}}:" if owner[:1] != "}" else f"{OF_OWNERS}{_MARK}{owner}}}:"


def owner_of(key: str) -> tuple[Owner, str]:
    """Whose key of `owner_keys` or `ecq_keys` this is, and which of them: `pending`, or `ecq:pending`."""
    owner, _, word = key.removeprefix(OF_OWNERS).removeprefix(_MARK).rpartition("}:")
    return Owner(owner), word


def _of_owner(word: str) -> Callable[[Owner | str], str]:
    return lambda owner: f"{_of(owner)}{word}"


pending = _of_owner("pending")  # sorted set seq → seq: queued, not acknowledged, the one in flight among them
parked = _of_owner("parked")  # sorted set seq → seq: pending, but the data has not come
# Hash seq, published_at, attempts, deadline, send_by (by the clock of Redis): what the vehicle has to acknowledge.
inflight = _of_owner("inflight")
# Hash connected, since, expiry, heard, subscribed (when it was seen to, or `no`): what is known of its connection. It expires,
# and says `passing`, where nothing waited for that owner when it was seen: anybody may come under any name.
presence = _of_owner("presence")
compaction = _of_owner("keys")  # hash compaction key → seq; exists only where compaction is on
attempts = _of_owner("attempts")  # hash seq → attempts of entries that were published and released again
done = _of_owner("done")  # sorted set seq → seq of entries that ended lately, until the lake knows their outcome
ecq_inflight = _of_owner("ecq:inflight")  # hash of what an owner's compacted queue has in flight
ecq_messages = _of_owner("ecq:messages")  # hash seq → key, NUL, payload of the messages of an owner's compacted queue


def owner_keys(owner: Owner | str) -> list[str]:
    """All keys of one owner, in the order in which every Lua verb takes them."""
    q = _of(owner)
    return [f"{q}pending", f"{q}inflight", f"{q}presence", f"{q}keys", f"{q}done", f"{q}parked", f"{q}attempts"]


def taken_field(node: int, *, of_ecq: bool = False) -> str:
    """The field of a recorder in TAKEN: for its triggers, or for its stream ecq."""
    return f"ecq/{node}" if of_ecq else str(node)


def ecq_keys(owner: Owner | str) -> list[str]:
    """All keys of an owner's compacted queue, in the order in which its Lua verbs take them."""
    q = _of(owner)
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
    """Hash request_id, data_id of one trigger; shared by all its owners; expires with the retention."""
    return f"t:{seq}"


def data(data_id: DataId | str) -> str:
    """The payload; expires with the retention."""
    return f"d:{data_id}"


def waiting_for(data_id: DataId | str) -> str:
    """Set of `<owner> <seq>`: entries parked for this data."""
    return f"p:{data_id}"


def dedupe(digest: str) -> str:
    """The seq of the trigger with this digest, for as long as the dedupe window."""
    return f"dedupe:{digest}"


def recorders(node: int) -> str:
    """Hash place → claim, JSON: who gives the seqs of this node."""
    return f"recorders:{node}"


def populated(table: str) -> str:
    """The snapshot of this table of compacted queues up to which everything was offered to them."""
    return f"{ECQ_POPULATED}{table}"


def shard_of(owner: Owner | str, shards: int) -> int:
    """Which wake-up stream and deadline index an owner belongs to."""
    return zlib.crc32(owner.encode()) % shards


def wake(shard: int) -> str:
    """Stream of owners with new entries, many per record; read by the dispatchers as a consumer group.

    All shards lie in one cluster slot, so that one call waits for all of them: there are few records, and each names many owners.
    """
    return f"{{wake}}:{shard}"


def deadlines(shard: int) -> str:
    """Sorted set owner → Unix milliseconds: when to look whether what is in flight is overdue."""
    return f"deadlines:{shard}"
