"""Reads refused messages from quarantine: pages of them, newest first, or a single message with its payload. No Spark.

A refused message is *open* until an operator *settles* it, by replaying or dropping it.

If a platform publishes invalid messages for a night, quarantine gets millions of rows, and if all of them are dropped at once,
`quarantine_actions` gets as many. So both tables are read in pieces: only the rows of a page, and eight bytes per settled
message, are in memory at a time.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, GreaterThanOrEqual, In, LessThanOrEqual
from pyiceberg.io.pyarrow import ArrowScan

from manifold.contracts.errors import Permanent
from manifold.contracts.seq import MAX_SEQ
from manifold.contracts.tables import ACTIONS, QUARANTINE, Table
from manifold.lake.catalog import where
from manifold.lake.compat import stream_batches
from manifold.lake.reads import rows_of

OPEN, REPLAYED, DROPPED = "open", "replayed", "dropped"
COLUMNS = ("seq", "received_at", "stream", "topic", "reason")  # all columns of quarantine that a page needs
NEWEST_FIRST = [("received_at", "descending"), ("seq", "descending")]
NOT_REFUSED = "no refused message has seq %s; `manifold quarantine ls --all` lists them"
SCHEMA = pa.schema([QUARANTINE.arrow_schema.field(name) for name in COLUMNS])

Cursor = tuple[datetime, int]  # position in the list: time of receipt and seq


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused message and its state."""

    seq: int
    received_at: datetime
    stream: str
    topic: str
    reason: str
    state: str = OPEN
    settled_at: datetime | None = None
    note: str | None = None
    segment: str | None = None  # path of the segment with the replayed message
    payload: bytes = b""  # empty in a page; only `refusal` reads it

    @property
    def cursor(self) -> Cursor:
        """The cursor for the page that follows this refusal."""
        return self.received_at, self.seq


@dataclass(frozen=True, slots=True)
class RefusalFilter:
    """Selects refusals that meet all of these conditions."""

    stream: str | None = None  # None: all streams
    since: datetime | None = None  # received at or after this instant (UTC); None: at any time
    matching: str = ""  # a text that the reason contains, in upper or lower case
    settled: bool = False  # whether settled messages are included

    @property
    def filter(self) -> BooleanExpression:
        """The conditions by which Iceberg can prune files and row groups: stream and time."""
        row_filter: BooleanExpression = AlwaysTrue()
        if self.stream is not None:
            row_filter = And(row_filter, where(EqualTo, "stream", self.stream))
        if self.since is not None:
            row_filter = And(row_filter, where(GreaterThanOrEqual, "received_at", self.since))
        return row_filter


@dataclass(frozen=True, slots=True)
class Page:
    """A page of refusals, newest first."""

    refusals: list[Refusal]
    total: int  # number of matching refusals on all pages
    more: bool  # whether there are older matching refusals


def page(catalog: Catalog, selection: RefusalFilter, *, limit: int, before: Cursor | None = None) -> Page:
    """Read the newest `limit` matching refusals that are older than the cursor `before` (None: the newest of all)."""
    newest = SCHEMA.empty_table()
    total = 0  # matching refusals
    total_before = 0  # matching refusals that are older than the cursor
    for rows in _matching_rows(catalog, selection, _settled_seqs(catalog)):
        total += rows.num_rows
        older = rows if before is None else rows.filter(_is_older(rows, before))
        total_before += older.num_rows
        candidates = pa.concat_tables([newest, older])
        newest = candidates.take(pc.select_k_unstable(candidates, k=limit, sort_keys=NEWEST_FIRST))
    # If settled messages are not selected, all of these are open, and have no action.
    actions = _last_actions(catalog, newest["seq"].to_pylist()) if selection.settled else {}
    refusals = [_refusal(row, actions.get(row["seq"])) for row in newest.to_pylist()]
    return Page(refusals, total, more=total_before > limit)


def seqs(catalog: Catalog, selection: RefusalFilter) -> list[int]:
    """The seqs of all matching refusals, in ascending order."""
    matching = _concat_seqs(_matching_rows(catalog, selection, _settled_seqs(catalog)))
    return matching.sort().to_pylist()  # type: ignore[no-any-return]


def refusal(catalog: Catalog, seq: int) -> Refusal:
    """Read a refusal with its payload.

    Raises:
        Permanent: no message with this seq was refused.
    """
    rows = rows_of(catalog, QUARANTINE, where(EqualTo, "seq", seq), (*COLUMNS, "payload"))
    if not rows:
        raise Permanent(NOT_REFUSED % seq)
    row = rows[-1]  # there are several if a replay was refused again
    action = _last_actions(catalog, [seq]).get(seq)
    return replace(_refusal(row, action), payload=row["payload"])


def open_among(catalog: Catalog, candidates: Collection[int]) -> list[int]:
    """Return the seqs of `candidates` whose messages are not settled yet, each once, in the order of `candidates`.

    `quarantine` and `quarantine_actions` are each read only once, whatever the number of seqs.

    Raises:
        Permanent: the message with one of these seqs was never refused.
    """
    for seq in candidates:
        if not -MAX_SEQ <= seq <= MAX_SEQ:  # the array below could not hold it
            raise Permanent(NOT_REFUSED % seq)
    distinct = pa.array(list(dict.fromkeys(candidates)), pa.int64())
    if not len(distinct):
        return []
    bounds = pc.min_max(distinct).as_py()
    is_in_range = And(where(GreaterThanOrEqual, "seq", bounds["min"]), where(LessThanOrEqual, "seq", bounds["max"]))
    refused_seqs = _seqs_in(catalog, QUARANTINE, is_in_range)
    never_refused = distinct.filter(pc.invert(pc.is_in(distinct, refused_seqs)))
    if len(never_refused):
        raise Permanent(NOT_REFUSED % never_refused[0].as_py())
    is_settled = pc.is_in(distinct, _settled_seqs(catalog))
    return distinct.filter(pc.invert(is_settled)).to_pylist()  # type: ignore[no-any-return]


def _matching_rows(catalog: Catalog, selection: RefusalFilter, settled_seqs: pa.Array) -> Iterator[pa.Table]:
    """Yield the matching rows of quarantine, with each settled seq only once.

    A settled message can have several rows, because a replay may be refused again.

    Args:
        catalog: the lake's catalog.
        selection: the conditions.
        settled_seqs: the seqs of all settled messages, each once.
    """
    was_yielded = np.zeros(len(settled_seqs), np.bool_)  # whether a row with the seq at this index of `settled_seqs` was yielded
    for rows in _batches(catalog, QUARANTINE, COLUMNS, selection.filter):
        matching = rows
        if selection.matching:
            matching = rows.filter(pc.match_substring(rows["reason"], selection.matching, ignore_case=True))
        is_settled = pc.is_in(matching["seq"], settled_seqs)
        yield matching.filter(pc.invert(is_settled))
        if not selection.settled:
            continue
        settled = matching.filter(is_settled)
        index_of_row = pc.index_in(settled["seq"], settled_seqs).to_numpy()
        indices, first_rows = np.unique(index_of_row, return_index=True)  # of each seq among these rows, the first row
        is_new = ~was_yielded[indices]
        yield settled.take(pa.array(first_rows[is_new]))
        was_yielded[indices] = True


def _batches(catalog: Catalog, definition: Table, columns: tuple[str, ...], row_filter: BooleanExpression) -> Iterator[pa.Table]:
    """Yield these columns of the matching rows, file by file, in the batches of the file reader.

    PyIceberg's own batch reader is not used, because it reads all files into memory in advance.
    """
    try:
        table = catalog.load_table(definition.identifier)
    except NoSuchTableError:  # nothing has been ingested yet
        return
    schema = pa.schema([definition.arrow_schema.field(name) for name in columns])
    scan = ArrowScan(table.metadata, table.io, table.schema().select(*columns), row_filter)
    for task in table.scan(row_filter).plan_files():
        for batch in stream_batches(scan, table.io, task):
            yield pa.Table.from_batches([batch]).select(list(columns)).cast(schema)


def _is_older(rows: pa.Table, cursor: Cursor) -> pa.ChunkedArray:
    """A boolean per row: whether the row is older than the cursor, by time of receipt and then by seq."""
    received_at, seq = cursor
    instant = pa.scalar(received_at, SCHEMA.field("received_at").type)
    is_earlier = pc.less(rows["received_at"], instant)
    has_lower_seq = pc.and_(pc.equal(rows["received_at"], instant), pc.less(rows["seq"], seq))
    return pc.or_(is_earlier, has_lower_seq)


def _refusal(row: dict[str, Any], action: dict[str, Any] | None) -> Refusal:
    """The refusal in a row of quarantine, with the last action that settled it (None: it is open)."""
    values = {name: row[name] for name in COLUMNS}
    if action is None:
        return Refusal(**values)
    return Refusal(**values, state=action["action"], settled_at=action["at"], note=action["note"], segment=action["segment"])


def _settled_seqs(catalog: Catalog) -> pa.Array:
    """The seqs of all settled messages, each once."""
    return pc.unique(_seqs_in(catalog, ACTIONS, AlwaysTrue()))


def _seqs_in(catalog: Catalog, table: Table, row_filter: BooleanExpression) -> pa.Array:
    return _concat_seqs(_batches(catalog, table, ("seq",), row_filter))


def _concat_seqs(tables: Iterable[pa.Table]) -> pa.Array:
    """The column `seq` of all tables, as a single array."""
    chunks = [chunk for table in tables for chunk in table["seq"].chunks]
    return pa.concat_arrays(chunks) if chunks else pa.array([], pa.int64())


def _last_actions(catalog: Catalog, seqs: list[int]) -> dict[int, dict[str, Any]]:
    """Seq → last action on the message, as a row of `quarantine_actions`."""
    rows = rows_of(catalog, ACTIONS, In(term="seq", literals=set(seqs))) if seqs else []
    oldest_first = sorted(rows, key=lambda row: row["at"])
    return {row["seq"]: row for row in oldest_first}  # a later action on a message replaces an earlier one
