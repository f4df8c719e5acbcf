"""Reads messages of compacted queues from the lake, at a cost that does not grow with the lake.

The seq of a message contains the instant at which the message was accepted, and `ecq_payload` is partitioned by the day of that
instant. A look-up therefore reads only files of that day whose bounds include the instant, and of these files only the row groups
whose bounds include it.
"""

from collections.abc import Collection, Iterator
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import FileScanTask

from manifold.contracts.seq import unix_ms_of
from manifold.contracts.tables import ECQ_PAYLOAD
from manifold.lake.retry_reads import retry_missing_files
from manifold.lake.row_groups import RowLookup

PIECE_BYTES = 4 << 20  # bytes decoded at once; a single row group may be larger
COLUMNS = ("client_id", "key", "seq", "ts", "payload")
Wanted = tuple[str, int]  # client id, seq


class StoredMessage(NamedTuple):
    """A message of a compacted queue: its key and its payload."""

    key: str
    payload: bytes


def read_messages(catalog: Catalog, wanted: Collection[Wanted]) -> dict[Wanted, StoredMessage]:
    """Read the messages of `wanted` that the lake has, all of them into memory; the result lacks those that the lake lacks."""
    stored: dict[Wanted, StoredMessage] = {}
    for piece in messages(catalog, wanted):
        stored |= piece
    return stored


def messages(catalog: Catalog, wanted: Collection[Wanted]) -> Iterator[dict[Wanted, StoredMessage]]:
    """Yield the messages of `wanted` that the lake has, in pieces of a few MiB.

    Raises:
        Exception: a catalog or storage error of any kind; all messages that can be read were yielded before. Without an error,
            a message that is in no piece is not in the lake.
    """
    return retry_missing_files(wanted, partial(_find, catalog))


def _find(catalog: Catalog, wanted: Collection[Wanted], failures: list[Exception]) -> Iterator[dict[Wanted, StoredMessage]]:
    """Yield the wanted messages that the table has, file by file. Errors are appended to `failures`, not raised."""
    missing = set(wanted)
    try:
        table = catalog.load_table(ECQ_PAYLOAD.identifier)
        instants_us = {unix_ms_of(seq) * 1000 for _, seq in missing}
        lookup = RowLookup(table, "ts", instants_us)
        files = lookup.files()
    except NoSuchTableError:  # nothing has been ingested yet
        return
    except FileNotFoundError as exc:  # removed since the table was loaded, so the caller retries
        failures.append(exc)
        return
    for task in files:
        if not missing:
            return
        try:
            for rows in _read_candidates(lookup, task):
                piece = _select(rows, missing)
                if piece:
                    missing.difference_update(piece)
                    yield piece
        except Exception as exc:  # noqa: BLE001  # go on with the other files; the caller raises the error at the end
            failures.append(exc)


def _read_candidates(lookup: RowLookup, task: FileScanTask) -> Iterator[pa.Table]:
    """Yield, in pieces, the rows of a file that may be among the wanted messages."""
    with lookup.opened(task, COLUMNS) as file:
        if file is None:
            yield from lookup.scanned(task, COLUMNS)
            return
        for groups in lookup.groups(file, COLUMNS, PIECE_BYTES):
            yield file.rows(groups, COLUMNS)


def _select(rows: pa.Table, wanted: set[Wanted]) -> dict[Wanted, StoredMessage]:
    """The wanted messages among these rows."""
    seqs = pa.array({seq for _, seq in wanted}, pa.int64())
    candidates = rows.filter(pc.is_in(rows["seq"], value_set=seqs)).to_pylist()  # filter in Arrow before rows become dicts
    selected: dict[Wanted, StoredMessage] = {}
    for row in candidates:
        message_id = row["client_id"], row["seq"]
        if message_id in wanted:
            selected[message_id] = StoredMessage(row["key"], row["payload"])
    return selected
