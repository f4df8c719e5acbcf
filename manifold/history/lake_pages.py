"""Pages of the lake, newest first: the triggers of a request_id, and the entries of a vehicle.

A request_id may be in use for years, and a vehicle may receive a message every hour.

Files are read in descending order of their maximum seq, which is in the metadata, until a page is full or enough rows were read.
So the cost of a page does not grow with the number of older entries.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from datetime import timedelta
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, In, LessThan
from pyiceberg.table import FileScanTask
from pyiceberg.types import LongType

from manifold.contracts.outcomes import EntryState, Outcome
from manifold.contracts.seq import MAX_SEQ, datetime_of
from manifold.contracts.tables import IDS, OUTCOMES, Table
from manifold.history.entry import OPEN, BatchHistory, Bounds
from manifold.lake.catalog import where
from manifold.lake.data_files import read_files
from manifold.lake.reads import triggers_filter

MAX_CONCURRENT_FILES = 8  # for a vehicle: each file has few of its rows, so that latency dominates


class _Files:
    """The files of a table that may contain rows matching the filter, selected by metadata; read one after another."""

    def __init__(self, catalog: Catalog, table: Table, wanted: BooleanExpression) -> None:
        self._wanted = wanted
        try:
            self._table = catalog.load_table(table.identifier)
        except NoSuchTableError:  # nothing ingested yet
            self.tasks: list[FileScanTask] = []
            return
        self.tasks = list(self._table.scan(wanted).plan_files())
        self._seq = self._table.schema().find_field("seq").field_id

    def newest_seq(self, task: FileScanTask) -> int:
        """Return the greatest seq in a file."""
        bound = (task.file.upper_bounds or {}).get(self._seq)
        return MAX_SEQ if bound is None else int(from_bytes(LongType(), bound))

    def rows(self, tasks: Iterable[FileScanTask], *columns: str) -> pa.Table:
        """Return the matching rows of some files."""
        return read_files(self._table, tasks, columns, self._wanted)

    def all_rows(self, *columns: str) -> Iterator[pa.Table]:
        """Yield the matching rows of every file."""
        return (self.rows([task], *columns) for task in self.tasks)

    def walk(
        self, found: dict[int, Any], bounds: Bounds, take: Callable[[list[FileScanTask]], None], at_once: int = 1
    ) -> int | None:
        """Call `take` on files, newest first, to add their rows to `found` (by seq), until a page is full.

        Trims `found` to the page. Returns the seq before which older rows may follow; None: there are none.
        """
        tasks = iter(sorted(self.tasks, key=self.newest_seq, reverse=True))
        looked_at = 0
        while some := list(islice(tasks, at_once)):
            top = self.newest_seq(some[0])  # upper bound of the seqs in this and all later files
            settled = [seq for seq in found if seq > top]
            if len(settled) > bounds.limit:
                break
            rows = sum(task.file.record_count for task in some)
            looked_at += rows
            if looked_at > max(bounds.rows, rows) and (settled or not found):
                for seq in found.keys() - settled:
                    del found[seq]
                return top + 1
            take(some)
            for seq in sorted(found)[: -(bounds.limit + 1)]:  # newer ones fill the page already
                del found[seq]
        more = len(found) > bounds.limit
        for seq in sorted(found)[: -bounds.limit]:
            del found[seq]
        return min(found) if more else None


def newest_triggers(catalog: Catalog, request_id: str, bounds: Bounds) -> tuple[list[BatchHistory], int | None]:
    """Return the newest triggers of this request_id within the bounds, oldest first, and `before` of the next page."""
    files = _Files(catalog, IDS, And(where(EqualTo, "request_id", request_id), _bounds_filter(bounds)))
    found: dict[int, tuple[str, int]] = {}  # data_id, number of vehicles

    def take(tasks: list[FileScanTask]) -> None:
        rows = files.rows(tasks, "seq", "data_id").group_by("seq", use_threads=False)
        grouped = rows.aggregate([("data_id", "min"), ("seq", "count")]).to_pydict()
        for seq, data_id, count in zip(grouped["seq"], grouped["data_id_min"], grouped["seq_count"], strict=True):
            found[seq] = data_id, count + found.get(seq, ("", 0))[1]

    before = files.walk(found, bounds, take)
    ended = _ended(catalog, found.keys())
    return [BatchHistory(seq, data_id, n, _states(n, ended[seq])) for seq, (data_id, n) in sorted(found.items())], before


def newest_entries(catalog: Catalog, vin: str, bounds: Bounds) -> tuple[list[dict[str, Any]], int | None]:
    """Return vin, seq, request_id and data_id of a vehicle's newest entries, and `before` of the next page."""
    files = _Files(catalog, IDS, And(where(EqualTo, "vin", vin), _bounds_filter(bounds)))
    found: dict[int, dict[str, Any]] = {}

    def take(tasks: list[FileScanTask]) -> None:
        rows = files.rows(tasks, "vin", "seq", "request_id", "data_id")
        seqs = sorted(pc.unique(rows["seq"]).to_pylist())[-(bounds.limit + 1) :]
        young = rows.filter(pc.greater_equal(rows["seq"], seqs[0])) if seqs else rows
        found.update({row["seq"]: row for row in young.to_pylist()})

    before = files.walk(found, bounds, take, MAX_CONCURRENT_FILES)
    return list(found.values()), before


def _bounds_filter(bounds: Bounds) -> BooleanExpression:
    seqs = And(where(GreaterThanOrEqual, "seq", bounds.since), where(LessThan, "seq", bounds.before))
    end = datetime_of(bounds.before) + timedelta(milliseconds=1)  # `before` may be one more than a seq of the same millisecond
    return And(seqs, And(where(GreaterThanOrEqual, "ts", datetime_of(bounds.since)), where(LessThan, "ts", end)))


def read_vehicles(catalog: Catalog, seq: int, vins: Set[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """Yield (vin, state) of each vehicle of a trigger (only `vins`, if given): `pending`, or its entry's outcome."""
    ended: dict[str, str] = {}
    for rows in _Files(catalog, OUTCOMES, _with_vins(triggers_filter("accepted_at", {seq}), vins)).all_rows("vin", "outcome"):
        for vin, outcome in zip(rows["vin"].to_pylist(), rows["outcome"].to_pylist(), strict=True):
            if outcome != Outcome.WITHDRAWN or vin not in ended:
                ended[vin] = outcome
    for rows in _Files(catalog, IDS, _with_vins(triggers_filter("ts", {seq}), vins)).all_rows("vin"):
        yield from ((vin, ended.get(vin, EntryState.PENDING)) for vin in rows["vin"].to_pylist())


def _with_vins(mine: BooleanExpression, vins: Set[str]) -> BooleanExpression:
    return And(mine, In(term="vin", literals=vins)) if vins else mine


def _states(vehicles: int, ended: Counter[str]) -> dict[str, int]:
    rest = vehicles - ended.total()
    return dict(ended) | ({OPEN: rest} if rest > 0 else {})


def _ended(catalog: Catalog, seqs: Iterable[int]) -> dict[int, Counter[str]]:
    ended = {seq: Counter[str]() for seq in seqs}
    if not ended:
        return ended
    for rows in _Files(catalog, OUTCOMES, triggers_filter("accepted_at", ended.keys())).all_rows("seq", "outcome"):
        grouped = rows.group_by(["seq", "outcome"], use_threads=False).aggregate([([], "count_all")]).to_pydict()
        for seq, outcome, count in zip(grouped["seq"], grouped["outcome"], grouped["count_all"], strict=True):
            ended[seq][outcome] += count
    return _without_late(catalog, ended)


def _without_late(catalog: Catalog, ended: dict[int, Counter[str]]) -> dict[int, Counter[str]]:
    """The counts without those of entries that were delivered after they had been withdrawn: these count as delivered."""
    withdrawn = {seq for seq, counts in ended.items() if counts[Outcome.WITHDRAWN] and counts[Outcome.DELIVERED]}
    vins = {seq: Counter[str]() for seq in withdrawn}
    if withdrawn:
        for rows in _Files(catalog, OUTCOMES, triggers_filter("accepted_at", withdrawn)).all_rows("seq", "vin"):
            for seq, vin in zip(rows["seq"].to_pylist(), rows["vin"].to_pylist(), strict=True):
                vins[seq][vin] += 1
    for seq, rows_of in vins.items():
        ended[seq][Outcome.WITHDRAWN] -= sum(number > 1 for number in rows_of.values())
        ended[seq] = +ended[seq]
    return ended
