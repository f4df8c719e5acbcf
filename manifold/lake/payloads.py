"""Reads payloads from the lake, at a cost that does not grow with the lake, and in memory that does not grow with the request.

`sdv_fanout_meta` is an index: it has, for each data_id, the instant at which its payload was stored. It is small, and compaction
sorts it by data_id. With these instants, a look-up in `sdv_fanout_data` reads only the partitions, files and row groups whose
bounds include one of them.
"""

import time
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import FileScanTask
from pyiceberg.table import Table as IcebergTable

from manifold.contracts.tables import DATA, META, Table
from manifold.lake.retry_reads import retry_missing_files
from manifold.lake.row_groups import OpenFile, RowLookup, indices_of, micros
from manifold.lake.sightings import folded

PIECE_BYTES = 4 << 20  # bytes of payloads yielded together, and bytes decoded at once; a single payload may be larger
PIECE_S = 0.1  # the maximum time for which a payload is held back to be yielded together with others
MAX_FAILING_S = 30  # the maximum time spent on unreadable files; after that, no further file is read
MAX_LOADED_BYTES = 4 * PIECE_BYTES  # of compressed payloads; a larger column is read through a buffer
SELECTION_COLUMNS = ("data_id", "first_seen_at", "seq", "size_bytes")  # the columns by which rows are selected
COLUMNS = (*SELECTION_COLUMNS, "payload")


log = structlog.get_logger(__name__)


def read_payload(catalog: Catalog, data_id: str) -> bytes | None:
    """The payload of `data_id`; None if the lake does not have it (or has no tables yet)."""
    return read_payloads(catalog, (data_id,)).get(data_id)


def read_payloads(catalog: Catalog, data_ids: Collection[str]) -> dict[str, bytes]:
    """Read those payloads of `data_ids` that the lake has, all of them into memory."""
    payloads: dict[str, bytes] = {}
    for piece in StoredPayloads(catalog).pieces(data_ids):
        payloads |= {data_id: payload for data_id, payload in piece.items() if payload is not None}
    return payloads


class StoredPayloads:
    """The payloads in the lake, by the index as it was when this object was created, or when a retry read it again."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._index = _load(catalog, META)

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot id of the index; None if there is no index yet.

        As long as the id does not change, a payload that the lake lacks stays missing: payloads are published before the index.
        """
        return self._index.metadata.current_snapshot_id if self._index is not None else None

    def pieces(self, data_ids: Iterable[str], piece_bytes: int = PIECE_BYTES) -> Iterator[dict[str, bytes | None]]:
        """Yield the payloads by data_id, None for those that the lake lacks, in pieces of at most about `piece_bytes` bytes.

        A payload larger than that is a piece by itself.

        Raises:
            Exception: a catalog or storage error of any kind; all payloads that can be read were yielded before.
        """
        return retry_missing_files(data_ids, partial(self._find, piece_bytes=piece_bytes), self._reload_index)

    def _reload_index(self) -> None:
        self._index = _load(self._catalog, META)

    def _find(self, data_ids: Set[str], failures: list[Exception], piece_bytes: int) -> Iterator[dict[str, bytes | None]]:
        """Yield None for the data_ids that are not in the index, then the payloads, in pieces.

        Errors are appended to `failures`.
        """
        try:
            table = _load(self._catalog, DATA)  # loaded after the index, so that it has every payload that the index names
            instants = self._stored_instants(data_ids) if table is not None else {}
            not_indexed = data_ids - instants.keys()
            if not_indexed:
                yield dict.fromkeys(not_indexed)
            if table is None or not instants:
                return
            lookup = RowLookup(table, "first_seen_at", instants.values())
            files = lookup.files()
        except FileNotFoundError as exc:
            failures.append(exc)
            return
        missing = instants  # `_read_files` removes each payload that it yields
        yield from _in_pieces(_read_files(lookup, files, missing, failures), piece_bytes)
        if missing and not failures:  # every file was read, so the lake lacks them
            yield dict.fromkeys(missing)

    def _stored_instants(self, data_ids: Collection[str]) -> dict[str, int]:
        """When each payload was stored, in microseconds since 1970, for the data_ids that are in the index."""
        if self._index is None:
            return {}
        pieces = RowLookup(self._index, "data_id", data_ids).rows(("data_id", "stored_at"), PIECE_BYTES)
        folded_pieces = [folded(rows) for rows in pieces]  # to one row per data_id; each piece at once, to bound memory
        if not folded_pieces:
            return {}
        rows = folded(pa.concat_tables(folded_pieces))  # several pieces may have rows of the same data_id
        return dict(zip(rows["data_id"].to_pylist(), micros(rows["stored_at"]), strict=True))


def _read_files(
    lookup: RowLookup, files: Iterable[FileScanTask], missing: dict[str, int], failures: list[Exception]
) -> Iterator[tuple[str, bytes]]:
    """Yield data_id and payload of the `missing` payloads, file by file, and remove each from `missing`.

    `missing` has the instant of each data_id. If a file cannot be read, the error is appended to `failures`, and the next file is
    read.
    """
    failing_s = 0.0
    for task in files:
        if not missing or failing_s > MAX_FAILING_S:
            return
        began = time.monotonic()  # of the read that may fail next: time spent on payloads that were yielded does not count
        try:
            for data_id, payload in _read_file(lookup, task, missing):
                if missing.pop(data_id, None) is not None:
                    yield data_id, payload
                    began = time.monotonic()
        except FileNotFoundError as exc:  # removed during the read, for example by compaction, so the caller retries
            failures.append(exc)
        except Exception as exc:  # damaged files raise many types
            log.exception("lake file unreadable", table=DATA.name, file=task.file.file_path)
            failures.append(exc)
            failing_s += time.monotonic() - began


def _read_file(lookup: RowLookup, task: FileScanTask, wanted: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """Yield data_id and payload of the wanted rows of one file. `wanted` has the instant of each data_id.

    The wanted rows are selected by the small columns first, because only those payloads are to be loaded.
    """
    with lookup.opened(task, COLUMNS) as file:
        if file is None:
            for rows in lookup.scanned(task, COLUMNS):
                for index, data_id in _select(rows, wanted).items():
                    yield data_id, rows["payload"][index].as_py()
            return
        for groups in lookup.groups(file, COLUMNS, PIECE_BYTES):
            candidates = file.rows(groups, SELECTION_COLUMNS)
            selected = _select(candidates, wanted)
            if selected:
                largest_bytes = pc.max(candidates["size_bytes"]).as_py() or 0
                rows_per_batch = max(1, PIECE_BYTES // max(1, largest_bytes))  # a batch has at most PIECE_BYTES, or one payload
                yield from _read_selected(file, groups, selected, rows_per_batch)


def _select(rows: pa.Table, wanted: Mapping[str, int]) -> dict[int, str]:
    """The index and data_id of the wanted rows: those whose data_id and instant are in `wanted`.

    Of several such rows with the same data_id, the one with the lowest seq is selected.
    """
    indices = indices_of(rows, "data_id", wanted)
    candidates = rows.select(("data_id", "seq")).take(indices).to_pydict()
    instants = micros(rows["first_seen_at"].take(indices))
    seq_and_index: dict[str, tuple[int, int]] = {}  # by data_id, of its row with the lowest seq
    for data_id, instant, seq, index in zip(candidates["data_id"], instants, candidates["seq"], indices.to_pylist(), strict=True):
        if wanted[data_id] != instant:
            continue
        known = seq_and_index.get(data_id)
        if known is None or (seq, index) < known:
            seq_and_index[data_id] = (seq, index)
    return {index: data_id for data_id, (_, index) in seq_and_index.items()}


def _read_selected(
    file: OpenFile, groups: list[int], selected: Mapping[int, str], rows_per_batch: int
) -> Iterator[tuple[str, bytes]]:
    """Yield data_id and payload of the selected rows; `selected` has the data_id of each row index within these row groups."""
    indices = sorted(selected)
    next_position = 0  # in `indices`: all before it are yielded
    batch_start = 0  # the index of the batch's first row
    for batch in file.batches(groups, "payload", rows_per_batch=rows_per_batch, max_loaded_bytes=MAX_LOADED_BYTES):
        batch_end = batch_start + len(batch)
        end_position = bisect_left(indices, batch_end)
        in_batch = indices[next_position:end_position]
        if in_batch:
            offsets = pa.array([index - batch_start for index in in_batch], pa.int64())
            payloads = batch.take(offsets).to_pylist()
            yield from zip((selected[index] for index in in_batch), payloads, strict=True)
        next_position, batch_start = end_position, batch_end
        if next_position == len(indices):
            return


def _in_pieces(payloads: Iterable[tuple[str, bytes]], piece_bytes: int) -> Iterator[dict[str, bytes | None]]:
    """Collect payloads into pieces; a piece ends when it would exceed `piece_bytes`, or is older than `PIECE_S`."""
    piece: dict[str, bytes | None] = {}
    size = 0
    began = time.monotonic()
    for data_id, payload in payloads:
        if piece and (size + len(payload) > piece_bytes or time.monotonic() - began > PIECE_S):
            yield piece
            piece = {}
            size = 0
            began = time.monotonic()
        piece[data_id] = payload
        size += len(payload)
    if piece:
        yield piece


def _load(catalog: Catalog, table: Table) -> IcebergTable | None:
    """Load the table; None if it does not exist, because nothing has been ingested yet."""
    try:
        return catalog.load_table(table.identifier)
    except NoSuchTableError:
        return None
