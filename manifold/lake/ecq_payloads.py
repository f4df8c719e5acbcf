"""Reads messages of compacted queues from the lake, at a cost that does not grow with it.

The seq of a message says when it was accepted, and `ecq_payload` is partitioned by the day of that instant. A look-up reads only
files of that day whose bounds include the seq, and small row groups in them.
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
from manifold.lake.row_groups import Places

PIECE_BYTES = 4 << 20  # of rows that are decoded at once; a single row group may be larger
COLUMNS = ("client_id", "key", "seq", "ts", "payload")
Wanted = tuple[str, int]  # client id, seq


class StoredMessage(NamedTuple):
    """A message of a compacted queue: its key and its payload."""

    key: str
    payload: bytes


def read_messages(catalog: Catalog, wanted: Collection[Wanted]) -> dict[Wanted, StoredMessage]:
    """Read the messages of `wanted` that the lake has, all of them into memory."""
    found: dict[Wanted, StoredMessage] = {}
    for piece in messages(catalog, wanted):
        found |= piece
    return found


def messages(catalog: Catalog, wanted: Collection[Wanted]) -> Iterator[dict[Wanted, StoredMessage]]:
    """Yield the messages that the lake has, in pieces of a few MiB. A message in no piece is not in the lake.

    Raises:
        Exception: some cannot be read (any catalog or storage error); all readable ones were yielded before.
    """
    return retry_missing_files(wanted, partial(_find, catalog))


def _find(catalog: Catalog, wanted: Collection[Wanted], failures: list[Exception]) -> Iterator[dict[Wanted, StoredMessage]]:
    """Yield the wanted messages that the table has, file by file; what cannot be read goes to `failures`."""
    asked = set(wanted)
    try:
        table = catalog.load_table(ECQ_PAYLOAD.identifier)
        places = Places(table, "ts", {unix_ms_of(seq) * 1000 for _, seq in asked})
        files = places.files()
    except NoSuchTableError:  # nothing has been ingested yet
        return
    except FileNotFoundError as exc:
        failures.append(exc)
        return
    for task in files:
        if not asked:
            return
        try:
            for rows in _rows(places, task):
                if found := _among(rows, asked):
                    asked.difference_update(found)
                    yield found
        except Exception as exc:  # noqa: BLE001  # other files have other messages; the caller raises it at the end
            failures.append(exc)


def _rows(places: Places, task: FileScanTask) -> Iterator[pa.Table]:
    with places.opened(task, COLUMNS) as file:
        if file is None:
            yield from places.scanned(task, COLUMNS)
            return
        for groups in places.groups(file, COLUMNS, PIECE_BYTES):
            yield file.rows(groups, COLUMNS)


def _among(rows: pa.Table, wanted: set[Wanted]) -> dict[Wanted, StoredMessage]:
    seqs = pa.array({seq for _, seq in wanted}, pa.int64())
    near = rows.filter(pc.is_in(rows["seq"], value_set=seqs)).to_pylist()
    return {
        (row["client_id"], row["seq"]): StoredMessage(row["key"], row["payload"])
        for row in near
        if (row["client_id"], row["seq"]) in wanted
    }
