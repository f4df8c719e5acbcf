"""Finds the rows that name a vehicle, in every table, and clears free text that names it."""

from collections.abc import Iterable, Iterator
from itertools import chain
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
from pipelines.erasure.campaigns import order_without_vehicle, rows_of
from pipelines.erasure.names import ErasedVehicle
from pipelines.erasure.sealed import SEALED_STREAMS
from pipelines.ingest.delete_rows import Changes
from pipelines.ingest.erasing import lists_deleted, matching_files, replace_erased

# Tables that runs do not write, each with its column of free text.
TEXTS = ((QUALITY, "sample"), (ACTIONS, "note"))


class Removal(NamedTuple):
    """The keys of rows to remove from a table, and rows to add in their place."""

    table: Table
    keys: pa.Table
    replacement: pa.Table | None = None


def find_removals(catalog: Catalog, vehicle: ErasedVehicle, base: dict[str, int]) -> list[Removal]:
    """Find the rows to remove from each table. Tables without such rows are left out.

    `base` has the id of the snapshot to search, by table name.
    """
    is_of_vehicle = And(where(EqualTo, "vin", vehicle.vin), where(LessThan, "seq", vehicle.before_seq))
    removals: list[Removal] = []
    for table in (IDS, OUTCOMES):
        scan = catalog.load_table(table.identifier).scan(is_of_vehicle, ("vin", "seq"), snapshot_id=base[table.name])
        removals.append(Removal(table, scan.to_arrow().select(["vin", "seq"])))
    removals.append(_quarantine_removal(catalog, vehicle, base))
    removals += _data_removals(catalog, vehicle, base)
    removals += _queue_removals(catalog, vehicle, base)
    removals += _signal_removals(catalog, vehicle, base)
    removals += _order_removals(catalog, vehicle, base)
    removals.append(_answer_removal(catalog, vehicle, base))
    return [removal for removal in removals if _has_rows(catalog, removal, base)]


def _quarantine_removal(catalog: Catalog, vehicle: ErasedVehicle, base: dict[str, int]) -> Removal:
    """Return the removal of refused messages that name the vehicle, also in a sealed payload."""
    refused = _search(catalog, QUARANTINE, vehicle, base, ("seq", "topic", "reason", "payload"))
    seqs = {row["seq"] for row in refused} | set(_seqs_of_sealed(catalog, vehicle, base))
    return Removal(QUARANTINE, _seq_keys(seq for seq in seqs if seq < vehicle.before_seq))


def _data_removals(catalog: Catalog, vehicle: ErasedVehicle, base: dict[str, int]) -> Iterator[Removal]:
    """Yield the removals of payloads whose data_id or content names the vehicle."""
    columns: tuple[str, ...] = ("data_id", "seq")
    if vehicle.is_searched_in_opaque:  # otherwise, the short name would be found in payloads by chance
        columns += ("payload",)
    payload_rows = _search(catalog, DATA, vehicle, base, columns)
    index_rows = _search(catalog, META, vehicle, base, ("data_id", "first_seen_at"))
    data_ids = {row["data_id"] for row in chain(payload_rows, index_rows) if not vehicle.is_accepted_later(row)}
    keys = pa.table({"data_id": pa.array(sorted(data_ids), pa.string())})
    for table in (DATA, META):
        yield Removal(table, keys)


def _order_removals(catalog: Catalog, vehicle: ErasedVehicle, base: dict[str, int]) -> Iterator[Removal]:
    """Yield the removals of orders to campaigns that name the vehicle, with replacements that do not."""
    columns = ("campaign", "by", "why", "rule", "counts", "record", "seq")
    events = [row for row in _search(catalog, CAMPAIGN_EVENTS, vehicle, base, columns) if not vehicle.is_accepted_later(row)]
    remaining_orders: dict[int, bytes] = {}
    for event in events:
        order = order_without_vehicle(event["record"], vehicle.vin, vehicle.is_named_in)
        if order is not None:  # otherwise the order is removed without a replacement
            remaining_orders[event["seq"]] = order
    replacements = rows_of(remaining_orders)
    order_keys = _seq_keys({event["seq"] for event in events})
    for table in ORDER_TABLES:
        yield Removal(table, order_keys, replacements[table.name])


def _answer_removal(catalog: Catalog, vehicle: ErasedVehicle, base: dict[str, int]) -> Removal:
    """Return the removal of answers to campaigns that name the vehicle, with replacements for those of other vehicles."""
    answer_columns = tuple(column.name for column in CAMPAIGN_ANSWERS.columns)
    rows = _search(catalog, CAMPAIGN_ANSWERS, vehicle, base, answer_columns)
    answers = [row for row in rows if not vehicle.is_accepted_later(row)]
    # An answer of another vehicle is replaced by the same answer without its reason. It gets no replacement if the name of its
    # campaign names the erased vehicle.
    others = [row for row in answers if not vehicle.is_named_in(row["vin"]) and not vehicle.is_named_in(row["campaign"])]
    without_reason = pa.Table.from_pylist([row | {"reason": None} for row in others], schema=CAMPAIGN_ANSWERS.arrow_schema)
    return Removal(CAMPAIGN_ANSWERS, _seq_keys(row["seq"] for row in answers), without_reason)


def _queue_removals(catalog: Catalog, vehicle: ErasedVehicle, base: dict[str, int]) -> Iterator[Removal]:
    """Yield the removals of compacted queues: the vehicle's own rows, and messages whose key or payload names the vehicle."""
    columns: tuple[str, ...] = ("client_id", "key", "seq")
    if vehicle.is_searched_in_opaque:  # otherwise, the short name would be found in payloads by chance
        columns += ("payload",)
    payload_rows = _search(catalog, ECQ_PAYLOAD, vehicle, base, columns)
    index_rows = _search(catalog, ECQ_INDEX, vehicle, base, ("client_id", "key", "seq"))
    message_keys = _seq_keys({row["seq"] for row in chain(payload_rows, index_rows) if not vehicle.is_accepted_later(row)})
    for table in (ECQ_PAYLOAD, ECQ_INDEX):
        yield Removal(table, message_keys)
    for table in (ECQ_STATE, ECQ_SEQNO):
        rows = [row for row in _search(catalog, table, vehicle, base, table.key) if not vehicle.is_accepted_later(row)]
        key_schema = pa.schema([table.arrow_schema.field(name) for name in table.key])
        yield Removal(table, pa.Table.from_pylist(rows, schema=key_schema))


def _signal_removals(catalog: Catalog, vehicle: ErasedVehicle, base: dict[str, int]) -> Iterator[Removal]:
    """Yield the removals of signals whose text columns name the device. Payloads are sealed, so they are not searched."""
    for table in SIGNAL_TABLES:
        if table.name in base:  # otherwise the lake has no tables of signals
            text_columns = tuple(column.name for column in table.columns if pa.types.is_string(column.type))
            rows = _search(catalog, table, vehicle, base, (*text_columns, "seq"))
            yield Removal(table, _seq_keys({row["seq"] for row in rows if not vehicle.is_accepted_later(row)}))


def _seq_keys(seqs: Iterable[int]) -> pa.Table:
    return pa.table({"seq": pa.array(sorted(seqs), pa.int64())})


def _seqs_of_sealed(catalog: Catalog, vehicle: ErasedVehicle, base: dict[str, int]) -> Iterator[int]:
    """Yield the seqs of refused messages of signals whose payloads, once opened, name the vehicle."""
    if not vehicle.is_searched_in_opaque:  # a short name is not searched for in payloads, so these need not be opened
        return
    loaded = catalog.load_table(QUARANTINE.identifier)
    is_of_signals = In(term="stream", literals={stream.value for stream in SEALED_STREAMS})
    scan = loaded.scan(is_of_signals, ("seq", "payload"), snapshot_id=base[QUARANTINE.name])
    for batch in scan.to_arrow_batch_reader():
        for seq, payload in zip(batch["seq"].to_pylist(), batch["payload"].to_pylist(), strict=True):
            if seq < vehicle.before_seq and vehicle.is_named_in_sealed(seq, payload):
                yield seq


def _has_rows(catalog: Catalog, removal: Removal, base: dict[str, int]) -> bool:
    """Whether the removal's table has a row with one of the removal's keys."""
    if not removal.keys.num_rows:
        return False
    loaded = catalog.load_table(removal.table.identifier)
    files_with_rows = matching_files(loaded, base[removal.table.name], removal.keys)
    return next(files_with_rows, None) is not None


def _search(
    catalog: Catalog, table: Table, vehicle: ErasedVehicle, base: dict[str, int], columns: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, with these columns, in which a text or binary column names the vehicle."""
    loaded = catalog.load_table(table.identifier)
    for task in loaded.scan(snapshot_id=base[table.name]).plan_files():
        yield from rows_naming(read_files(loaded, [task], columns), vehicle, columns)


def rows_naming(rows: pa.Table, vehicle: ErasedVehicle, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the rows in which one of the text and binary columns among `columns` names the vehicle."""
    text_columns = [column for column in columns if _is_text(rows[column].type)]
    if not text_columns or not rows.num_rows:
        return
    # A quick test of whole columns selects the rows that are searched one by one.
    is_candidate = vehicle.may_be_named_in(rows[text_columns[0]])
    for column in text_columns[1:]:
        is_candidate = pc.or_(is_candidate, vehicle.may_be_named_in(rows[column]))
    for row in rows.filter(is_candidate).to_pylist():
        if any(row[column] is not None and vehicle.is_named_in(row[column]) for column in text_columns):
            yield row


def _is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type has text or bytes."""
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind))


@retry_conflicts
def erase_texts(catalog: Catalog, table: Table, column: str, vehicle: ErasedVehicle) -> int:
    """Set the column to null on main wherever it names the vehicle; return the number of changed rows."""
    loaded = catalog.load_table(table.identifier)
    head = loaded.current_snapshot()
    assert head is not None  # `ensure_tables` has created the table with a snapshot
    changes: Changes = {}
    count = 0
    for task in loaded.scan(snapshot_id=head.snapshot_id).plan_files():
        rows = read_files(loaded, [task])
        old_texts = rows[column].to_pylist()
        new_texts = [None if text is not None and vehicle.is_named_in(text) else text for text in old_texts]
        changed = sum(new != old for new, old in zip(new_texts, old_texts, strict=True))
        if changed:
            column_index = rows.schema.get_field_index(column)
            new_column = pa.array(new_texts, rows[column].type)
            changes[task.file] = rows.set_column(column_index, rows.field(column_index), new_column)
            count += changed
    if changes:
        replace_erased(loaded, MAIN, changes, {})
    return count


def drop_deleted_entries(catalog: Catalog, table: Table) -> None:
    """If main's newest snapshot lists removed files, add a snapshot that does not. Only for tables that runs do not write.

    The list has bounds of the columns of removed files, which may name the vehicle.
    """
    loaded = catalog.load_table(table.identifier)
    head = loaded.metadata.current_snapshot_id
    if head is not None and lists_deleted(loaded, head):
        append_nothing(catalog, table, MAIN, {})
