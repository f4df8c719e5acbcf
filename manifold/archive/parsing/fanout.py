"""Messages of the streams `trigger`, `data` and `outcome`."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifold.archive.parsing.common import (
    COMMON,
    Limits,
    Row,
    common_columns,
    encodable,
    refused_row,
    rows_of_messages,
    validated,
)
from manifold.contracts.envelope import DUPLICATE_OF, inline_encoding
from manifold.contracts.messages import Data, Refused, Trigger, parse_data, parse_trigger, sha1_hex, shown
from manifold.contracts.outcomes import OutcomeRecord
from manifold.contracts.topics import RELEASE, TRIGGER, TRIGGER_TOPICS, data_id_of, data_topic
from manifold.contracts.vins import are_iso_3779

IDS_PER_ROW = 10_000  # VINs per row: a batch of a million becomes a hundred rows instead of a single one of many megabytes
OTHER_BYTES = "data_id %s is known with other bytes (SHA-1 %s); publish them under another data_id"


TRIGGERS = pa.schema(
    [
        *COMMON,
        ("request_id", pa.string()),
        ("data_id", pa.string()),
        ("applied", pa.bool_()),
        ("vins", pa.list_(pa.string())),
        ("vins_are_iso_3779", pa.bool_()),  # true: all VINs of the row are valid; false: none of them is
        ("has_data", pa.bool_()),
        ("wave", pa.int64()),  # this column and the next two are null unless the trigger belongs to a campaign
        ("step", pa.int64()),
        ("until_ms", pa.int64()),
    ]
)
DATA = pa.schema([*COMMON, ("data_id", pa.string()), ("sha1", pa.string()), ("payload", pa.binary())])
OUTCOMES = pa.schema(
    [
        *COMMON,
        ("vin", pa.string()),
        ("entry_seq", pa.int64()),
        ("outcome", pa.string()),
        ("dispatched_ms", pa.int64()),
        ("ended_ms", pa.int64()),
        ("attempts", pa.int32()),
        ("said", pa.string()),
    ]
)


def triggers(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """Parse triggers.

    A refused message yields one row. An accepted trigger yields a row for every `IDS_PER_ROW` VINs, with VINs that conform to
    ISO 3779 and other VINs in separate rows. A duplicate of an earlier trigger yields a row without VINs if it has inline data,
    because that data was published again; otherwise it yields no row.
    """

    def rows_of(message: Row) -> Iterator[Row]:
        return _trigger_rows(message, validated(_trigger, message, limits))

    for batch in rows_of_messages(messages, TRIGGERS, rows_of):
        yield from _by_iso_3779(batch)


def refused_triggers(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """Parse triggers as `triggers` does, but yield only the rows of refused messages."""
    for batch in triggers(messages, limits):
        yield batch.filter(pc.is_valid(batch["reason"]))


def inline_data(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """Extract the inline data of accepted triggers, including duplicates. Messages that cannot have any are not parsed."""
    payload = messages["payload"]
    # A trigger with inline data has the JSON key "data", spelled literally or with an escape, which needs a backslash.
    may_have_data = pc.or_(pc.match_substring(payload, '"data"'), pc.match_substring(payload, "\\"))
    candidates = messages.filter(may_have_data)
    return rows_of_messages(candidates, DATA, lambda message: _inline_rows(message, validated(_trigger, message, limits)))


def data(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """Parse the data stream into one row per message, accepted or refused."""
    return rows_of_messages(messages, DATA, lambda message: [_data_row(message, validated(_data, message, limits))])


def outcomes(messages: pa.Table, limits: Limits) -> Iterator[pa.RecordBatch]:
    """Parse the outcome stream into one row per message, accepted or refused."""
    return rows_of_messages(messages, OUTCOMES, lambda message: [_outcome_row(message, validated(_outcome, message, limits))])


def _outcome(message: Row, _: Limits) -> OutcomeRecord | Refused:
    try:
        return OutcomeRecord.from_wire(message["payload"])
    except ValueError as exc:
        return Refused(str(exc))


def _outcome_row(message: Row, record: OutcomeRecord | Refused) -> Row:
    if isinstance(record, Refused):
        return refused_row(message, record.reason)
    return common_columns(message) | {
        "vin": record.vin,
        "entry_seq": record.seq,
        "outcome": record.outcome.value,
        "dispatched_ms": record.dispatched_ms,
        "ended_ms": record.ended_ms,
        "attempts": record.attempts,
        "said": encodable(record.reason),
    }


def _trigger(message: Row, limits: Limits) -> Trigger | Refused:
    is_release = message["topic"] == RELEASE
    if message["topic"] not in TRIGGER_TOPICS and not is_release:
        return _unknown_topic(message)
    return parse_trigger(
        message["payload"],
        max_ids=limits.max_ids,
        max_data_bytes=limits.max_data_bytes,
        inline_encoding=inline_encoding(dict(message["headers"] or ()), limits.inline_encoding),
        is_release=is_release,
    )


def _data(message: Row, limits: Limits) -> Data | Refused:
    data_id = data_id_of(message["topic"])
    if data_id is None:
        return _unknown_topic(message)
    return parse_data(data_id, message["payload"], max_data_bytes=limits.max_data_bytes)


def _data_row(message: Row, parsed: Data | Refused) -> Row:
    if isinstance(parsed, Refused):
        return refused_row(message, parsed.reason)
    return common_columns(message) | {"data_id": parsed.data_id, "sha1": sha1_hex(parsed.payload), "payload": parsed.payload}


def _inline_rows(message: Row, trigger: Trigger | Refused) -> Iterator[Row]:
    """Yield a row with the inline data, if the trigger has any. A refused trigger yields no row; `triggers` yields it."""
    if isinstance(trigger, Trigger) and trigger.data is not None:
        yield common_columns(message) | {
            "message": message["payload"],
            "data_id": trigger.data_id,
            "sha1": trigger.data_id,  # the data_id of inline data is its SHA-1
            "payload": trigger.data,
        }


def _trigger_rows(message: Row, trigger: Trigger | Refused) -> Iterator[Row]:
    """Yield one row if the trigger is refused, else a row for every `IDS_PER_ROW` VINs.

    A duplicate of an earlier trigger yields a row without VINs if it has inline data, else no row.
    """
    if isinstance(trigger, Refused):
        yield refused_row(message, trigger.reason)
        return
    columns = common_columns(message)
    columns |= {"request_id": trigger.request_id, "data_id": trigger.data_id, "applied": bool(message["applied"])}
    if trigger.data is not None:
        columns["has_data"] = True
    if trigger.campaign is not None:
        columns |= {"wave": trigger.campaign.wave, "step": trigger.campaign.step, "until_ms": trigger.campaign.until_ms}
    if _is_duplicate(message):
        if trigger.data is not None:  # the data was published again
            yield columns | {"vins": []}
        return
    for first in range(0, len(trigger.ids), IDS_PER_ROW):
        yield columns | {"vins": trigger.ids[first : first + IDS_PER_ROW]}


def _by_iso_3779(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split the rows by validity of their VINs, and set `vins_are_iso_3779`.

    Yields a batch of the rows with valid VINs and one of the rows with invalid VINs; a row that has both is in both batches, each
    time with only the VINs of that batch. Rows without VINs (refused messages and duplicates) are in the first batch.
    """
    lists = batch["vins"]
    vins = lists.flatten()
    row_of_vin = pc.list_parent_indices(lists)
    vin_is_valid = are_iso_3779(vins)  # a flag for each VIN of all rows
    if vin_is_valid.all():  # or no row has VINs
        yield _replace_vins(batch, lists, are_valid=True)
        return
    has_no_vins = np.bincount(row_of_vin, minlength=len(batch)) == 0
    for are_valid in (True, False):
        selected = pa.array(vin_is_valid == are_valid)
        counts = np.bincount(row_of_vin.filter(selected), minlength=len(batch))  # selected VINs per row
        offsets = pa.array(np.cumsum([0, *counts]), pa.int32())
        selected_lists = pa.ListArray.from_arrays(offsets, vins.filter(selected))
        is_kept = counts > 0
        if are_valid:
            is_kept |= has_no_vins
        yield _replace_vins(batch, selected_lists, are_valid=are_valid).filter(pa.array(is_kept))


def _replace_vins(batch: pa.RecordBatch, lists: pa.ListArray, *, are_valid: bool) -> pa.RecordBatch:
    """Return the batch with these lists of VINs, one per row, all of which are valid, or all of which are not."""
    replaced = {"vins": lists, "vins_are_iso_3779": pa.repeat(pa.scalar(are_valid), len(batch))}
    columns = [replaced.get(name, batch[name]) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _is_duplicate(message: Row) -> bool:
    return any(name == DUPLICATE_OF for name, _ in message["headers"] or ())


def _unknown_topic(message: Row) -> Refused:
    return Refused(f"topic {shown(message['topic'])} is unknown here; publish to {TRIGGER} or {data_topic('<data_id>')}")
