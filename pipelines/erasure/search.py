"""Finds the rows that name a vehicle, in every table, and clears free text that names it."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, EqualTo, In, LessThan

from manifold.contracts.tables import (
    ACTIONS,
    CAMPAIGN_ANSWERS,
    CAMPAIGN_EVENTS,
    DATA,
    ECQ_INDEX,
    ECQ_PAYLOAD,
    ECQ_SEQNO,
    ECQ_STATE,
    IDS,
    META,
    ORDER_TABLES,
    OUTCOMES,
    QUALITY,
    QUARANTINE,
    SIGNAL_TABLES,
    Table,
)
from manifold.lake.catalog import where
from manifold.lake.commits import MAIN, append_nothing, retry_conflicts
from manifold.lake.data_files import read_files
from pipelines.erasure.campaigns import rows_of, without_vehicle
from pipelines.erasure.names import Named
from pipelines.erasure.sealed import STREAMS
from pipelines.ingest.delete_rows import Changes
from pipelines.ingest.erasing import lists_deleted, matching_files, replace_erased

TEXTS = ((QUALITY, "sample"), (ACTIONS, "note"))  # tables outside runs, and their free-text column


class Removal(NamedTuple):
    """Rows to remove from a table, by their keys, and the rows that take their place."""

    table: Table
    keys: pa.Table
    replacement: pa.Table | None = None


def rows_named(catalog: Catalog, named: Named, base: dict[str, int]) -> list[Removal]:
    """The rows to remove from each table; tables without any are left out."""
    mine = And(where(EqualTo, "vin", named.vin), where(LessThan, "seq", named.before))
    found: list[Removal] = []
    for table in (IDS, OUTCOMES):
        rows = catalog.load_table(table.identifier).scan(mine, ("vin", "seq"), snapshot_id=base[table.name]).to_arrow()
        found.append(Removal(table, rows.select(["vin", "seq"])))
    refused = _search(catalog, QUARANTINE, named, base, ("seq", "topic", "reason", "payload"))
    refused_seqs = {row["seq"] for row in refused} | set(_sealed(catalog, named, base))
    seqs = pa.array([seq for seq in sorted(refused_seqs) if seq < named.before], pa.int64())
    found.append(Removal(QUARANTINE, pa.table({"seq": seqs})))
    columns = ("data_id", "payload", "seq") if named.opaque else ("data_id", "seq")
    data_ids = {row["data_id"] for row in _search(catalog, DATA, named, base, columns) if not named.is_newer(row)}
    seen = _search(catalog, META, named, base, ("data_id", "first_seen_at"))
    data_ids |= {row["data_id"] for row in seen if not named.is_newer(row)}
    found += [Removal(table, pa.table({"data_id": pa.array(sorted(data_ids), pa.string())})) for table in (DATA, META)]
    found += _queue_rows(catalog, named, base)
    found += _signal_rows(catalog, named, base)
    found += _campaign_rows(catalog, named, base)
    return [each for each in found if each.keys.num_rows and _files(catalog, each.table, each.keys, base[each.table.name])]


def _campaign_rows(catalog: Catalog, named: Named, base: dict[str, int]) -> Iterator[Removal]:
    """Removals of the rows of orders and answers that name the vehicle, with the rows that replace them, without its name."""
    rows = [*_search(catalog, CAMPAIGN_EVENTS, named, base, ("campaign", "by", "why", "rule", "counts", "record", "seq"))]
    orders = {row["seq"]: row["record"] for row in rows if not named.is_newer(row)}
    kept = {seq: rest for seq, order in orders.items() if (rest := without_vehicle(order, named.vin, named.is_in)) is not None}
    replacements = rows_of(kept)
    for table in ORDER_TABLES:
        yield Removal(table, pa.table({"seq": pa.array(sorted(orders), pa.int64())}), replacements[table.name])
    columns = tuple(column.name for column in CAMPAIGN_ANSWERS.columns)
    answers = [row for row in _search(catalog, CAMPAIGN_ANSWERS, named, base, columns) if not named.is_newer(row)]
    others = [row | {"reason": None} for row in answers if not (named.is_in(row["vin"]) or named.is_in(row["campaign"]))]
    seqs = pa.array(sorted(row["seq"] for row in answers), pa.int64())
    yield Removal(CAMPAIGN_ANSWERS, pa.table({"seq": seqs}), pa.Table.from_pylist(others, schema=CAMPAIGN_ANSWERS.arrow_schema))


def _queue_rows(catalog: Catalog, named: Named, base: dict[str, int]) -> Iterator[Removal]:
    """The keys in compacted queues: the vehicle's own messages, and those whose key or payload names it."""
    columns = ("client_id", "key", "payload", "seq") if named.opaque else ("client_id", "key", "seq")
    messages = [*_search(catalog, ECQ_PAYLOAD, named, base, columns)]
    messages += _search(catalog, ECQ_INDEX, named, base, ("client_id", "key", "seq"))
    seqs = pa.array({row["seq"] for row in messages if not named.is_newer(row)}, pa.int64())
    yield from (Removal(table, pa.table({"seq": seqs})) for table in (ECQ_PAYLOAD, ECQ_INDEX))
    for table in (ECQ_STATE, ECQ_SEQNO):
        rows = [row for row in _search(catalog, table, named, base, table.key) if not named.is_newer(row)]
        keys = pa.schema([table.arrow_schema.field(name) for name in table.key])
        yield Removal(table, pa.Table.from_pylist(rows, schema=keys))


def _signal_rows(catalog: Catalog, named: Named, base: dict[str, int]) -> Iterator[Removal]:
    """The keys of a device's signals, and of others whose text columns name it; payloads are sealed and name nobody."""
    for table in SIGNAL_TABLES:
        if table.name in base:
            texts = tuple(column.name for column in table.columns if pa.types.is_string(column.type))
            rows = _search(catalog, table, named, base, (*texts, "seq"))
            seqs = pa.array({row["seq"] for row in rows if not named.is_newer(row)}, pa.int64())
            yield Removal(table, pa.table({"seq": seqs}))


def _sealed(catalog: Catalog, named: Named, base: dict[str, int]) -> Iterator[int]:
    """Seqs of refused messages of signals that name the vehicle in their sealed bytes."""
    if not named.opaque:
        return
    loaded = catalog.load_table(QUARANTINE.identifier)
    of_signals = In(term="stream", literals={stream.value for stream in STREAMS})
    scan = loaded.scan(of_signals, ("seq", "payload"), snapshot_id=base[QUARANTINE.name])
    for batch in scan.to_arrow_batch_reader():
        for seq, payload in zip(batch["seq"].to_pylist(), batch["payload"].to_pylist(), strict=True):
            if seq < named.before and named.is_in_sealed(seq, payload):
                yield seq


def _files(catalog: Catalog, table: Table, keys: pa.Table, at: int) -> bool:
    return any(True for _ in matching_files(catalog.load_table(table.identifier), at, keys))


def _search(
    catalog: Catalog, table: Table, named: Named, base: dict[str, int], columns: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    loaded = catalog.load_table(table.identifier)
    for task in loaded.scan(snapshot_id=base[table.name]).plan_files():
        yield from matches(read_files(loaded, [task], columns), named, columns)


def matches(rows: pa.Table, named: Named, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the rows in which a text or binary column names the vehicle."""
    texts = [c for c in columns if pa.types.is_string(t := rows[c].type) or pa.types.is_large_string(t) or _is_bytes(t)]
    if not texts or not rows.num_rows:
        return
    perhaps = named.may_be_in(rows[texts[0]], escaped=True)
    for column in texts[1:]:
        perhaps = pc.or_(perhaps, named.may_be_in(rows[column], escaped=column not in ("data_id", "vin", "client_id")))
    for row in rows.filter(perhaps).to_pylist():
        if any(row[c] is not None and named.is_in(row[c]) for c in texts):
            yield row


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


@retry_conflicts
def erase_texts(catalog: Catalog, table: Table, column: str, named: Named) -> int:
    """Clear the column on main wherever it names the vehicle; return the number of rows."""
    loaded = catalog.load_table(table.identifier)
    head = loaded.current_snapshot()
    assert head is not None  # ensure_tables gives it one
    changes: Changes = {}
    count = 0
    for task in loaded.scan(snapshot_id=head.snapshot_id).plan_files():
        rows = read_files(loaded, [task])
        texts = [None if text is not None and named.is_in(text) else text for text in rows[column].to_pylist()]
        emptied = sum(a != b for a, b in zip(texts, rows[column].to_pylist(), strict=True))
        if emptied:
            place = rows.schema.get_field_index(column)
            changes[task.file] = rows.set_column(place, rows.field(place), pa.array(texts, rows[column].type))
            count += emptied
    if changes:
        replace_erased(loaded, MAIN, changes, {})
    return count


def drop_deleted_entries(catalog: Catalog, table: Table) -> None:
    """Drop the names of removed files from main's newest snapshot. Only for tables outside runs."""
    loaded = catalog.load_table(table.identifier)
    head = loaded.metadata.current_snapshot_id
    if head is not None and lists_deleted(loaded, head):
        append_nothing(catalog, table, MAIN, {})
