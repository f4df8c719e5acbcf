"""Pages of the lake, newest first: the triggers of a request_id, and the entries of a vehicle.

A request_id may be in use for years, and a vehicle may receive a message every hour. So the cost of a page must not grow with the
number of older entries: files are read in descending order of their greatest seq, which is in the metadata, until a page is full
or enough rows are read.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from datetime import timedelta
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

MAX_CONCURRENT_FILES = 8  # files read at once for a vehicle: each has few of its rows, so latency dominates


class _Files:
    """The files of a table that may contain rows matching a filter, according to the metadata."""

    def __init__(self, catalog: Catalog, table: Table, row_filter: BooleanExpression) -> None:
        self._row_filter = row_filter
        try:
            self._table = catalog.load_table(table.identifier)
        except NoSuchTableError:  # nothing is ingested yet
            self.tasks: list[FileScanTask] = []  # without a task, no method uses the table
            return
        self.tasks = list(self._table.scan(row_filter).plan_files())
        self._seq_field_id = self._table.schema().find_field("seq").field_id

    def seq_upper_bound(self, task: FileScanTask) -> int:
        """Return an upper bound of the seqs in a file, from the metadata; `MAX_SEQ` if the metadata has none."""
        bound = (task.file.upper_bounds or {}).get(self._seq_field_id)
        return MAX_SEQ if bound is None else int(from_bytes(LongType(), bound))

    def rows(self, tasks: Iterable[FileScanTask], *columns: str) -> pa.Table:
        """Return the matching rows of these files."""
        return read_files(self._table, tasks, columns, self._row_filter)

    def all_rows(self, *columns: str) -> Iterator[pa.Table]:
        """Yield the matching rows of each file."""
        return (self.rows([task], *columns) for task in self.tasks)

    def fill_page(
        self, found: dict[int, Any], bounds: Bounds, read: Callable[[list[FileScanTask]], None], files_at_once: int = 1
    ) -> int | None:
        """Fill `found` with the newest rows by seq: call `read` on files, newest first, until a page is full.

        `read` adds the rows of the given files to `found`. At the end, `found` is cut to the page, which is shorter if reading
        more would exceed `bounds.rows`. Return the seq before which older rows may follow, or None if there are none.
        """
        tasks = sorted(self.tasks, key=self.seq_upper_bound, reverse=True)
        rows_read = 0
        for start in range(0, len(tasks), files_at_once):
            group = tasks[start : start + files_at_once]
            top_seq = self.seq_upper_bound(group[0])  # no seq in this or any later file is greater
            complete_seqs = {seq for seq in found if seq > top_seq}  # no later file has more rows of these
            if len(complete_seqs) > bounds.limit:
                break
            group_rows = sum(task.file.record_count for task in group)
            is_over_row_limit = rows_read > 0 and rows_read + group_rows > bounds.rows  # the first group is always read
            would_lose_all = bool(found) and not complete_seqs  # all that was found would be deleted as incomplete
            if is_over_row_limit and not would_lose_all:
                for seq in found.keys() - complete_seqs:
                    del found[seq]
                return top_seq + 1  # the next page begins with the files that were not read
            read(group)
            rows_read += group_rows
            _keep_newest(found, bounds.limit + 1)  # one more than a page shows whether older rows follow
        has_more = len(found) > bounds.limit
        _keep_newest(found, bounds.limit)
        return min(found) if has_more else None


def _keep_newest(found: dict[int, Any], count: int) -> None:
    """Delete all items except those with the `count` greatest seqs."""
    for seq in sorted(found)[:-count]:
        del found[seq]


def newest_triggers(catalog: Catalog, request_id: str, bounds: Bounds) -> tuple[list[BatchHistory], int | None]:
    """Return the newest triggers of this request_id within the bounds, oldest first, and `before` of the next page."""
    files = _Files(catalog, IDS, And(where(EqualTo, "request_id", request_id), _bounds_filter(bounds)))
    found: dict[int, tuple[str, int]] = {}  # seq → data_id, number of vehicles

    def read(tasks: list[FileScanTask]) -> None:
        rows = files.rows(tasks, "seq", "data_id").group_by("seq", use_threads=False)
        grouped = rows.aggregate([("data_id", "min"), ("seq", "count")]).to_pydict()
        for seq, data_id, count in zip(grouped["seq"], grouped["data_id_min"], grouped["seq_count"], strict=True):
            vehicles = count
            if seq in found:  # the rows of a trigger may be in several files
                _, vehicles_so_far = found[seq]
                vehicles += vehicles_so_far
            found[seq] = data_id, vehicles

    before = files.fill_page(found, bounds, read)
    outcome_counts = _outcome_counts(catalog, found.keys())
    batches: list[BatchHistory] = []
    for seq, (data_id, vehicles) in sorted(found.items()):
        batches.append(BatchHistory(seq, data_id, vehicles, _states(vehicles, outcome_counts[seq])))
    return batches, before


def newest_entries(catalog: Catalog, vin: str, bounds: Bounds) -> tuple[list[dict[str, Any]], int | None]:
    """Return vin, seq, request_id and data_id of a vehicle's newest entries, and `before` of the next page."""
    files = _Files(catalog, IDS, And(where(EqualTo, "vin", vin), _bounds_filter(bounds)))
    found: dict[int, dict[str, Any]] = {}

    def read(tasks: list[FileScanTask]) -> None:
        rows = files.rows(tasks, "vin", "seq", "request_id", "data_id")
        newest_seqs = sorted(pc.unique(rows["seq"]).to_pylist())[-(bounds.limit + 1) :]
        if newest_seqs:  # convert no more rows to Python objects than a page may need
            rows = rows.filter(pc.greater_equal(rows["seq"], newest_seqs[0]))
        found.update({row["seq"]: row for row in rows.to_pylist()})

    before = files.fill_page(found, bounds, read, MAX_CONCURRENT_FILES)
    return list(found.values()), before


def _bounds_filter(bounds: Bounds) -> BooleanExpression:
    """Return the filter of rows whose seq is within the bounds. Its condition on `ts` lets Iceberg skip partitions."""
    is_within_seqs = And(where(GreaterThanOrEqual, "seq", bounds.since), where(LessThan, "seq", bounds.before))
    first_ts = datetime_of(bounds.since)
    # Seqs below `before` may have the same millisecond as `before`, so the end, which is exclusive, is one millisecond later.
    end_ts = datetime_of(bounds.before) + timedelta(milliseconds=1)
    is_within_times = And(where(GreaterThanOrEqual, "ts", first_ts), where(LessThan, "ts", end_ts))
    return And(is_within_seqs, is_within_times)


def read_vehicles(catalog: Catalog, seq: int, vins: Set[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """Yield (vin, state) of each vehicle of a trigger; if `vins` is not empty, only of these vehicles.

    The state is the outcome of the vehicle's entry, or `pending` if the lake has no outcome.
    """
    outcomes: dict[str, str] = {}
    outcome_files = _Files(catalog, OUTCOMES, _limited_to(vins, triggers_filter("accepted_at", {seq})))
    for rows in outcome_files.all_rows("vin", "outcome"):
        for vin, outcome in zip(rows["vin"].to_pylist(), rows["outcome"].to_pylist(), strict=True):
            # A withdrawn entry may still be delivered, and then has two outcomes; the withdrawal does not count.
            if outcome != Outcome.WITHDRAWN or vin not in outcomes:
                outcomes[vin] = outcome
    id_files = _Files(catalog, IDS, _limited_to(vins, triggers_filter("ts", {seq})))
    for rows in id_files.all_rows("vin"):
        for vin in rows["vin"].to_pylist():
            yield vin, outcomes.get(vin, EntryState.PENDING)


def _limited_to(vins: Set[str], row_filter: BooleanExpression) -> BooleanExpression:
    """Return the filter limited to rows of these vehicles; unchanged if `vins` is empty."""
    return And(row_filter, In(term="vin", literals=vins)) if vins else row_filter


def _states(vehicles: int, outcome_counts: Counter[str]) -> dict[str, int]:
    """Return the number of entries by state; entries without an outcome are `OPEN`."""
    states = dict(outcome_counts)
    open_count = vehicles - outcome_counts.total()
    if open_count > 0:
        states[OPEN] = open_count
    return states


def _outcome_counts(catalog: Catalog, seqs: Iterable[int]) -> dict[int, Counter[str]]:
    """Return for each of these triggers its number of entries by outcome."""
    counts = {seq: Counter[str]() for seq in seqs}
    if not counts:
        return counts
    for rows in _Files(catalog, OUTCOMES, triggers_filter("accepted_at", counts.keys())).all_rows("seq", "outcome"):
        grouped = rows.group_by(["seq", "outcome"], use_threads=False).aggregate([([], "count_all")]).to_pydict()
        for seq, outcome, count in zip(grouped["seq"], grouped["outcome"], grouped["count_all"], strict=True):
            counts[seq][outcome] += count
    _subtract_late_deliveries(catalog, counts)
    return counts


def _subtract_late_deliveries(catalog: Catalog, counts: dict[int, Counter[str]]) -> None:
    """Subtract from the withdrawn entries those that were delivered later. Such an entry has two rows and counts as delivered."""
    seqs = {seq for seq, by_outcome in counts.items() if by_outcome[Outcome.WITHDRAWN] and by_outcome[Outcome.DELIVERED]}
    if not seqs:
        return
    rows_of_vin = {seq: Counter[str]() for seq in seqs}  # by seq, the number of outcome rows of each vehicle
    for rows in _Files(catalog, OUTCOMES, triggers_filter("accepted_at", seqs)).all_rows("seq", "vin"):
        for seq, vin in zip(rows["seq"].to_pylist(), rows["vin"].to_pylist(), strict=True):
            rows_of_vin[seq][vin] += 1
    for seq, row_counts in rows_of_vin.items():
        vins_with_two_outcomes = [vin for vin, number in row_counts.items() if number > 1]
        counts[seq][Outcome.WITHDRAWN] -= len(vins_with_two_outcomes)
        counts[seq] = +counts[seq]  # unary plus removes counts of zero
