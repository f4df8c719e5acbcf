"""Reads payloads from the lake, at a cost that does not grow with it, and in memory that does not grow with the request.

`sdv_fanout_meta` has for each data_id the instant at which its payload was stored; it is small, and compaction sorts it by
data_id. With these instants, a walk over `sdv_fanout_data` touches a few days, the files of a few runs, and small row groups.
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
from manifold.lake.row_groups import OpenFile, Places, micros, places_of
from manifold.lake.sightings import folded

PIECE_BYTES = 4 << 20  # of payloads yielded together, and of what is decoded at once; a single one may be larger
PIECE_S = 0.1  # maximum time for which found payloads are held back, if others are far apart
MAX_FAILING_S = 30  # spent on unreadable files; after that, the rest are not tried
LIGHT = ("data_id", "first_seen_at", "seq", "size_bytes")  # the columns by which rows are chosen
WHOLE = (*LIGHT, "payload")


log = structlog.get_logger(__name__)


def read_payload(catalog: Catalog, data_id: str) -> bytes | None:
    """The payload of `data_id`; None if the lake does not have it (or has no tables yet)."""
    return read_payloads(catalog, (data_id,)).get(data_id)


def read_payloads(catalog: Catalog, data_ids: Collection[str]) -> dict[str, bytes]:
    """Read those payloads of `data_ids` that the lake has, all of them into memory."""
    found: dict[str, bytes] = {}
    for piece in StoredPayloads(catalog).pieces(data_ids):
        found |= {data_id: payload for data_id, payload in piece.items() if payload is not None}
    return found


class StoredPayloads:
    """The payloads that the lake has now."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._names = _loaded(catalog, META)

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot of the index, or None. While it stays the same, a missing payload stays missing: payloads come first."""
        return self._names.metadata.current_snapshot_id if self._names is not None else None

    def pieces(self, data_ids: Iterable[str], bytes_: int = PIECE_BYTES) -> Iterator[dict[str, bytes | None]]:
        """Yield dicts of data_id → payload (None if the lake lacks it), each of about `bytes_`; a larger payload comes alone.

        Raises:
            Exception: some cannot be read (any catalog or storage error); all readable ones were yielded before.
        """
        return retry_missing_files(data_ids, partial(self._find, bytes_=bytes_), self._renew)

    def _renew(self) -> None:
        self._names = _loaded(self._catalog, META)

    def _find(self, data_ids: Set[str], failures: list[Exception], bytes_: int) -> Iterator[dict[str, bytes | None]]:
        """Yield the payloads in the current tables; missing ones first."""
        try:
            payloads = _loaded(self._catalog, DATA)  # after the index, so that it has everything that the index names
            wanted = self._instants(data_ids) if payloads is not None else {}
            if missing := data_ids - wanted.keys():
                yield dict.fromkeys(missing)
            if payloads is None or not wanted:
                return
            places = Places(payloads, "first_seen_at", wanted.values())
            files = places.files()
        except FileNotFoundError as exc:
            failures.append(exc)
            return
        yield from _in_pieces(_walk(places, files, wanted, failures), bytes_)
        if wanted and not failures:
            yield dict.fromkeys(wanted)

    def _instants(self, data_ids: Collection[str]) -> dict[str, int]:
        """When the rows were stored, in microseconds since 1970; only for payloads that exist."""
        if self._names is None:
            return {}
        pieces = Places(self._names, "data_id", data_ids).rows(("data_id", "stored_at"), PIECE_BYTES)
        sightings = [folded(rows) for rows in pieces]  # fold each piece first, which bounds memory
        if not sightings:
            return {}
        names = folded(pa.concat_tables(sightings))
        return dict(zip(names["data_id"].to_pylist(), micros(names["stored_at"]), strict=True))


def _walk(
    places: Places, files: Iterable[FileScanTask], wanted: dict[str, int], failures: list[Exception]
) -> Iterator[tuple[str, bytes]]:
    """Yield wanted payloads, file by file, and remove them from `wanted`. An unreadable file costs only its own payloads."""
    failing_s = 0.0
    for task in files:
        if not wanted or failing_s > MAX_FAILING_S:
            return
        began = time.monotonic()
        try:
            for data_id, payload in _payloads_of(places, task, wanted):
                if wanted.pop(data_id, None) is not None:
                    yield data_id, payload
                    began = time.monotonic()
        except FileNotFoundError as exc:
            failures.append(exc)
        except Exception as exc:  # files fail in many ways, each by itself
            log.exception("lake file unreadable", table=DATA.name, file=task.file.file_path)
            failures.append(exc)
            failing_s += time.monotonic() - began


def _payloads_of(places: Places, task: FileScanTask, wanted: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """Yield the wanted payloads of one file, by data_id and instant."""
    with places.opened(task, WHOLE) as file:
        if file is None:
            for rows in places.scanned(task, WHOLE):
                chosen, _ = _choose(rows, wanted)
                yield from ((data_id, rows["payload"][row].as_py()) for row, data_id in chosen.items())
            return
        for groups in places.groups(file, WHOLE, PIECE_BYTES):
            chosen, largest = _choose(file.rows(groups, LIGHT), wanted)
            if chosen:
                yield from _read(file, groups, chosen, rows=max(1, PIECE_BYTES // max(1, largest)))


def _choose(light: pa.Table, wanted: Mapping[str, int]) -> tuple[dict[int, str], int]:
    """The indices of the wanted rows, each with its data_id; and the size of the largest payload among all rows."""
    near = places_of(light, "data_id", wanted)
    rows = light.select(("data_id", "seq")).take(near).to_pydict()
    instants = micros(light["first_seen_at"].take(near))
    first: dict[str, tuple[int, int]] = {}
    for data_id, instant, seq, place in zip(rows["data_id"], instants, rows["seq"], near.to_pylist(), strict=True):
        if wanted[data_id] == instant:
            first[data_id] = min(first.get(data_id, (seq, place)), (seq, place))
    return {place: data_id for data_id, (_, place) in first.items()}, pc.max(light["size_bytes"]).as_py() or 0


def _read(file: OpenFile, groups: list[int], chosen: Mapping[int, str], *, rows: int) -> Iterator[tuple[str, bytes]]:
    places, done, start = sorted(chosen), 0, 0
    for batch in file.batches(groups, "payload", rows=rows, bytes_=4 * PIECE_BYTES):
        end = start + len(batch)
        mine = places[done : bisect_left(places, end)]
        payloads = batch.take(pa.array([place - start for place in mine], pa.int64())).to_pylist() if mine else ()
        yield from zip((chosen[place] for place in mine), payloads, strict=True)
        done, start = done + len(mine), end
        if done == len(places):
            return


def _in_pieces(found: Iterable[tuple[str, bytes]], bytes_: int) -> Iterator[dict[str, bytes | None]]:
    piece: dict[str, bytes | None] = {}
    size, began = 0, time.monotonic()
    for data_id, payload in found:
        if piece and (size + len(payload) > bytes_ or time.monotonic() - began > PIECE_S):
            yield piece
            piece, size, began = {}, 0, time.monotonic()
        piece[data_id] = payload
        size += len(payload)
    if piece:
        yield piece


def _loaded(catalog: Catalog, table: Table) -> IcebergTable | None:
    """The current state of the table; None if nothing has been ingested yet."""
    try:
        return catalog.load_table(table.identifier)
    except NoSuchTableError:
        return None
