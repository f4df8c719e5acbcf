"""Makes the rows of the tables from parsed messages in memory: Arrow in, Arrow out. `transforms` is the same for Spark.

The input has the columns of `manifold.archive.parsing`. Each function returns the rows of its namesake in `transforms`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from manifold.archive.parsing import OTHER_BYTES
from manifold.contracts.envelope import Stream
from manifold.contracts.outcomes import Outcome
from manifold.contracts.seq import EPOCH_MS, TIME_SHIFT
from manifold.contracts.tables import DATA, IDS, INSTANT, META, OUTCOMES, QUARANTINE, Table

Rows = list[dict[str, Any]]


def parted(parsed: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The refused rows, and the accepted ones."""
    accepted = pc.is_null(parsed["reason"])
    return parsed.filter(pc.invert(accepted)), parsed.filter(accepted)


def instants_of(seqs: pa.ChunkedArray) -> pa.ChunkedArray:
    """The instants at which these seqs were given."""
    return _instants(pc.add(pc.shift_right(seqs, TIME_SHIFT), EPOCH_MS))


def ids_rows(accepted: pa.Table) -> pa.Table:
    """One row for each VIN of each accepted trigger."""
    vins = accepted["vins"].combine_chunks()
    of_each = accepted.select(["seq", "request_id", "data_id", "applied"]).take(pc.list_parent_indices(vins))
    rows = of_each.append_column("vin", pc.list_flatten(vins)).append_column("ts", instants_of(of_each["seq"]))
    return _as(IDS, rows)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of data messages: whose payload is to be stored, which ones conflict, and what `sdv_fanout_meta` is told."""

    new: frozenset[int]
    conflicts: Mapping[int, str]  # seq → the SHA-1 that its data_id stands for
    changes: Rows


def judged(sightings: pa.Table, known: Mapping[str, str]) -> Judgement:
    """Accepted data messages against what is `known` (data_id → SHA-1): its bytes count, else those of the lowest seq."""
    stored, new, conflicts, changes = dict(known), set[int](), dict[int, str](), dict[str, dict[str, Any]]()
    for row in sightings.select(["seq", "received_at", "data_id", "sha1"]).sort_by("seq").to_pylist():
        data_id, at = row["data_id"], row["received_at"]
        is_new = data_id not in stored
        stands_for = stored.setdefault(data_id, row["sha1"])
        if row["sha1"] != stands_for:
            conflicts[row["seq"]] = stands_for
            continue
        seen = {
            "data_id": data_id,
            "first_seen_at": at,
            "last_seen_at": at,
            "times_seen": 0,
            "sha1": stands_for,
            "stored_at": None,
        }
        change = changes.setdefault(data_id, seen)
        change |= {"first_seen_at": min(change["first_seen_at"], at), "last_seen_at": max(change["last_seen_at"], at)}
        change["times_seen"] += 1
        if is_new:
            new.add(row["seq"])
            change["stored_at"] = at
    return Judgement(frozenset(new), conflicts, list(changes.values()))


def merged_meta(had: Rows, changes: Rows) -> pa.Table:
    """Rows of `sdv_fanout_meta` with these changes: each data_id once, new ones after existing ones."""
    changed = {row["data_id"]: row for row in changes}
    rows = []
    for old in had:
        new = changed.pop(old["data_id"], None)
        rows.append(old if new is None else _merged(old, new))
    return pa.Table.from_pylist([*rows, *changed.values()], schema=META.arrow_schema)


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {
        "data_id": old["data_id"],
        "first_seen_at": min(old["first_seen_at"], new["first_seen_at"]),
        "last_seen_at": max(old["last_seen_at"], new["last_seen_at"]),
        "times_seen": old["times_seen"] + new["times_seen"],
        "sha1": new["sha1"] if old["sha1"] is None else old["sha1"],
        "stored_at": new["stored_at"] if old["stored_at"] is None else old["stored_at"],
    }


def data_rows(sightings: pa.Table, new: frozenset[int]) -> pa.Table:
    """The payloads to be stored."""
    rows = sightings.filter(pc.is_in(sightings["seq"], pa.array(sorted(new), pa.int64())))
    size = pc.cast(pc.binary_length(rows["payload"]), pa.int64())
    return _as(DATA, rows.append_column("size_bytes", size).append_column("first_seen_at", rows["received_at"]))


def outcome_rows(accepted: pa.Table) -> pa.Table:
    """One row for each entry that ended: what the first message about it says."""
    ordered = accepted.sort_by("seq")
    place = pa.array(range(ordered.num_rows), pa.int64())
    keyed = ordered.append_column("place", place).group_by(["vin", "entry_seq"], use_threads=False).aggregate([("place", "min")])
    first = ordered.take(keyed["place_min"])
    delivered = pc.equal(first["outcome"], Outcome.DELIVERED.value)
    columns = {
        "vin": first["vin"],
        "seq": first["entry_seq"],
        "outcome": first["outcome"],
        "accepted_at": instants_of(first["entry_seq"]),
        "dispatched_at": _instants(first["dispatched_ms"]),
        "acknowledged_at": _instants(pc.if_else(delivered, first["ended_ms"], None)),
        "ended_at": _instants(first["ended_ms"]),
        "attempts": first["attempts"],
        "reason": first["said"],
    }
    return _as(OUTCOMES, pa.table(columns))


def not_in(rows: pa.Table, known: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Rows whose keys are not among those of `known`."""
    if not known.num_rows:
        return rows
    there = set(zip(*(known[key].to_pylist() for key in keys), strict=True))
    mine = zip(*(rows[key].to_pylist() for key in keys), strict=True)
    return rows.filter(pa.array([key not in there for key in mine], pa.bool_()))


def once(refused: pa.Table) -> pa.Table:
    """One of the refused rows of each seq: copies of a file bring the same ones, and nobody has looked whether they overlap."""
    rows = refused.sort_by([("seq", "ascending"), ("topic", "ascending")])
    seqs = rows["seq"].to_pylist()
    return rows.filter(pa.array([place == 0 or seq != seqs[place - 1] for place, seq in enumerate(seqs)], pa.bool_()))


def refused_rows(refused: pa.Table, stream: Stream) -> pa.Table:
    """The quarantine rows of messages that a parser has refused."""
    return _as(QUARANTINE, _of_stream(refused.drop_columns("payload") if "payload" in refused.column_names else refused, stream))


def conflict_rows(sightings: pa.Table, conflicts: Mapping[int, str], stream: Stream) -> pa.Table:
    """The quarantine rows of data that came with other bytes than its data_id stands for.

    Where the data came inside a trigger, its `message` is that trigger.
    """
    rows = sightings.filter(pc.is_in(sightings["seq"], pa.array(sorted(conflicts), pa.int64())))
    reasons = [OTHER_BYTES % (row["data_id"], conflicts[row["seq"]]) for row in rows.select(["data_id", "seq"]).to_pylist()]
    texts = {"reason": pa.array(reasons, pa.string()), "message": pc.coalesce(rows["message"], rows["payload"])}
    brought = pa.table({name: rows[name] for name in ("seq", "received_at", "topic")} | texts)
    return _as(QUARANTINE, _of_stream(brought, stream))


def _of_stream(rows: pa.Table, stream: Stream) -> pa.Table:
    named = rows.rename_columns(["payload" if name == "message" else name for name in rows.column_names])
    if "digest" not in named.column_names:
        named = named.append_column("digest", pa.nulls(rows.num_rows, pa.string()))
    return named.append_column("stream", pa.array([stream.value] * rows.num_rows, pa.string()))


def _instants(ms: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(pc.multiply(ms, 1000), INSTANT)


def _as(table: Table, rows: pa.Table) -> pa.Table:
    return rows.select(table.arrow_schema.names).cast(table.arrow_schema)
