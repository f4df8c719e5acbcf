"""The triggers of a request_id in the lake, a page at a time, newest first: a platform may have used one request_id for years.

Files are read in the order of their newest seqs, by the metadata that names them, until a page is full or enough rows were looked
at. So a page costs what it shows, however much lies behind it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Set

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, In, LessThan
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask
from pyiceberg.types import LongType

from adapters.lake import read_triggers, triggers_filter, where
from contracts.lives import OPEN, Batch, Bounds, Page
from contracts.outcomes import EntryState
from contracts.seq import MAX_SEQ, datetime_of
from contracts.tables import IDS, OUTCOMES, Table


class _Files:
    """The files of main that may have rows that fit the filter, by the metadata alone; read one after the other."""

    def __init__(self, catalog: Catalog, table: Table, wanted: BooleanExpression) -> None:
        self._wanted = wanted
        try:
            self._table = catalog.load_table(table.identifier)
        except NoSuchTableError:  # nothing has been ingested yet
            self.tasks: list[FileScanTask] = []
            return
        self.tasks = list(self._table.scan(wanted).plan_files())
        self._seq = self._table.schema().find_field("seq").field_id

    def newest_seq(self, task: FileScanTask) -> int:
        """The greatest seq in a file."""
        bound = (task.file.upper_bounds or {}).get(self._seq)
        return MAX_SEQ if bound is None else int(from_bytes(LongType(), bound))

    def rows(self, task: FileScanTask, *columns: str) -> pa.Table:
        """The rows of one file that fit."""
        schema = self._table.schema().select(*columns)
        return ArrowScan(self._table.metadata, self._table.io, schema, self._wanted).to_table([task]).select(columns)

    def all_rows(self, *columns: str) -> Iterator[pa.Table]:
        """Those of every file."""
        return (self.rows(task, *columns) for task in self.tasks)


def read_page(catalog: Catalog, request_id: str, bounds: Bounds) -> Page:
    """The newest triggers with this request_id within the bounds."""
    counted, before = _newest(catalog, request_id, bounds)
    ended = _ended(catalog, counted.keys())
    batches = [Batch(seq, data_id, n, _states(n, ended[seq])) for seq, (data_id, n) in sorted(counted.items())]
    told = frozenset(bounds.told(batches))
    return Page(batches, before, read_triggers(catalog, told), told)


def read_vehicles(catalog: Catalog, seq: int, vins: Set[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """(vin, state) of each vehicle that a trigger names (of `vins`, where any are given): `pending`, or how its entry ended."""
    ended: dict[str, str] = {}
    for rows in _Files(catalog, OUTCOMES, _of(triggers_filter("accepted_at", {seq}), vins)).all_rows("vin", "outcome"):
        ended.update(zip(rows["vin"].to_pylist(), rows["outcome"].to_pylist(), strict=True))
    for rows in _Files(catalog, IDS, _of(triggers_filter("ts", {seq}), vins)).all_rows("vin"):
        yield from ((vin, ended.get(vin, EntryState.PENDING)) for vin in rows["vin"].to_pylist())


def _of(mine: BooleanExpression, vins: Set[str]) -> BooleanExpression:
    return And(mine, In(term="vin", literals=vins)) if vins else mine


def _states(vehicles: int, ended: Counter[str]) -> dict[str, int]:
    rest = vehicles - ended.total()
    return dict(ended) | ({OPEN: rest} if rest > 0 else {})


def _newest(catalog: Catalog, request_id: str, bounds: Bounds) -> tuple[dict[int, tuple[str, int]], int | None]:
    """By seq of the trigger: its data_id and how many vehicles it names; and before which seq others may follow."""
    within = And(where(GreaterThanOrEqual, "seq", bounds.since), where(LessThan, "seq", bounds.before))
    days = And(where(GreaterThanOrEqual, "ts", datetime_of(bounds.since)), where(LessThan, "ts", datetime_of(bounds.before + 1)))
    wanted = And(And(where(EqualTo, "request_id", request_id), within), days)
    files = _Files(catalog, IDS, wanted)
    names: dict[int, str] = {}
    counts = Counter[int]()
    looked_at = 0
    for task in sorted(files.tasks, key=files.newest_seq, reverse=True):
        top = files.newest_seq(task)  # no file from here on has a younger one
        settled = [seq for seq in counts if seq > top]
        looked_at += task.file.record_count
        if len(settled) > bounds.limit:
            break
        if looked_at > max(bounds.rows, task.file.record_count) and (settled or not counts):
            kept = sorted(settled)[-bounds.limit :]
            return {seq: (names[seq], counts[seq]) for seq in kept}, kept[0] if len(settled) > bounds.limit else top + 1
        rows = files.rows(task, "seq", "data_id").group_by("seq", use_threads=False)
        grouped = rows.aggregate([("data_id", "min"), ("seq", "count")]).to_pydict()
        counts.update(dict(zip(grouped["seq"], grouped["seq_count"], strict=True)))
        names.update(zip(grouped["seq"], grouped["data_id_min"], strict=True))
        for seq in sorted(counts)[: -(bounds.limit + 1)]:  # enough younger ones are known, whatever the other files have
            del counts[seq], names[seq]
    kept = sorted(counts)[-bounds.limit :]
    return {seq: (names[seq], counts[seq]) for seq in kept}, kept[0] if len(counts) > bounds.limit else None


def _ended(catalog: Catalog, seqs: Iterable[int]) -> dict[int, Counter[str]]:
    ended = {seq: Counter[str]() for seq in seqs}
    if not ended:
        return ended
    for rows in _Files(catalog, OUTCOMES, triggers_filter("accepted_at", ended.keys())).all_rows("seq", "outcome"):
        grouped = rows.group_by(["seq", "outcome"], use_threads=False).aggregate([([], "count_all")]).to_pydict()
        for seq, outcome, count in zip(grouped["seq"], grouped["outcome"], grouped["count_all"], strict=True):
            ended[seq][outcome] += count
    return ended
