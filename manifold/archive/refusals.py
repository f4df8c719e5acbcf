"""Reads refused messages: pages of them, newest first, or one with its payload. No Spark.

A platform that publishes invalid messages for a night leaves millions of rows, and dropping them all at once adds as many more.
Both tables are read in pieces: memory holds only the rows of a page, and eight bytes per settled message.
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
BRIEF = ("seq", "received_at", "stream", "topic", "reason")
NEWEST_FIRST = [("received_at", "descending"), ("seq", "descending")]
NEVER = "no refused message has seq %s; `manifold quarantine ls --all` lists them"
SCHEMA = pa.schema([QUARANTINE.arrow_schema.field(name) for name in BRIEF])

Cursor = tuple[datetime, int]  # position in the list: time of receipt and seq


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refused message and its state."""

    seq: int
    received_at: datetime
    stream: str
    topic: str
    reason: str
    state: str = OPEN
    settled_at: datetime | None = None
    note: str | None = None
    segment: str | None = None  # of a replay: the segment with the message
    payload: bytes = b""  # only for a single refusal

    @property
    def cursor(self) -> Cursor:
        """The cursor of the page after this refusal."""
        return self.received_at, self.seq


@dataclass(frozen=True, slots=True)
class RefusalFilter:
    """Selects refusals: of one stream, since an instant (UTC), with a text in the reason (in any case); `settled` ones too."""

    stream: str | None = None
    since: datetime | None = None
    matching: str = ""
    settled: bool = False

    @property
    def filter(self) -> BooleanExpression:
        """The part of the filter that prunes files and row groups."""
        wanted: BooleanExpression = AlwaysTrue()
        if self.stream is not None:
            wanted = And(wanted, where(EqualTo, "stream", self.stream))
        if self.since is not None:
            wanted = And(wanted, where(GreaterThanOrEqual, "received_at", self.since))
        return wanted


@dataclass(frozen=True, slots=True)
class Page:
    """A page of refusals, newest first."""

    refusals: list[Refusal]
    total: int  # all that match, on any page
    more: bool  # whether there are older ones


def page(catalog: Catalog, asked: RefusalFilter, *, limit: int, before: Cursor | None = None) -> Page:
    """Read the newest `limit` matching refusals `before` a cursor."""
    newest, total, left = SCHEMA.empty_table(), 0, 0
    for rows in _pieces(catalog, asked, _settled(catalog)):
        total += rows.num_rows
        older = rows if before is None else rows.filter(_is_before(rows, before))
        left += older.num_rows
        some = pa.concat_tables([newest, older])
        newest = some.take(pc.select_k_unstable(some, k=limit, sort_keys=NEWEST_FIRST))
    actions = _actions(catalog, newest["seq"].to_pylist()) if asked.settled else {}
    return Page([_refusal(row, actions.get(row["seq"])) for row in newest.to_pylist()], total, left > limit)


def seqs(catalog: Catalog, asked: RefusalFilter) -> list[int]:
    """The seqs of all matching refusals, in order."""
    found = _joined(_pieces(catalog, asked, _settled(catalog)))
    return found.sort().to_pylist()  # type: ignore[no-any-return]


def refusal(catalog: Catalog, seq: int) -> Refusal:
    """Read one refusal with its payload.

    Raises:
        Permanent: no message with this seq was refused.
    """
    rows = rows_of(catalog, QUARANTINE, where(EqualTo, "seq", seq), (*BRIEF, "payload"))
    if not rows:
        raise Permanent(NEVER % seq)
    return replace(_refusal(rows[-1], _actions(catalog, [seq]).get(seq)), payload=rows[-1]["payload"])


def open_among(catalog: Catalog, among: Collection[int]) -> list[int]:
    """Return those of `among` that are not settled yet, each once, in the order given. One pass, however many there are.

    Raises:
        Permanent: no message with one of these seqs was refused.
    """
    if beyond := [seq for seq in among if not -MAX_SEQ <= seq <= MAX_SEQ]:
        raise Permanent(NEVER % beyond[0])
    asked = pa.array(list(dict.fromkeys(among)), pa.int64())
    if not len(asked):
        return []
    span = pc.min_max(asked).as_py()
    between = And(where(GreaterThanOrEqual, "seq", span["min"]), where(LessThanOrEqual, "seq", span["max"]))
    refused = _seqs_in(catalog, QUARANTINE, between)
    if len(never := asked.filter(pc.invert(pc.is_in(asked, refused)))):
        raise Permanent(NEVER % never[0].as_py())
    return asked.filter(pc.invert(pc.is_in(asked, _settled(catalog)))).to_pylist()  # type: ignore[no-any-return]


def _pieces(catalog: Catalog, asked: RefusalFilter, acted: pa.Array) -> Iterator[pa.Table]:
    """Yield the matching rows, each seq once, though a replay refused again has a second row. `acted`: seqs of settled ones."""
    seen = np.zeros(len(acted), np.bool_)
    for rows in _batches(catalog, QUARANTINE, BRIEF, asked.filter):
        found = rows.filter(pc.match_substring(rows["reason"], asked.matching, ignore_case=True)) if asked.matching else rows
        is_settled = pc.is_in(found["seq"], acted)
        yield found.filter(pc.invert(is_settled))
        if not asked.settled:
            continue
        settled = found.filter(is_settled)
        of_acted, places = np.unique(pc.index_in(settled["seq"], acted).to_numpy(), return_index=True)
        yield settled.take(pa.array(places[~seen[of_acted]]))
        seen[of_acted] = True


def _batches(catalog: Catalog, of: Table, columns: tuple[str, ...], wanted: BooleanExpression) -> Iterator[pa.Table]:
    """Yield these columns of the matching rows, file by file, in the batches of the file reader.

    PyIceberg's own batch reader reads all files ahead.
    """
    try:
        table = catalog.load_table(of.identifier)
    except NoSuchTableError:  # nothing has been ingested yet
        return
    schema = pa.schema([of.arrow_schema.field(name) for name in columns])
    scan = ArrowScan(table.metadata, table.io, table.schema().select(*columns), wanted)
    for task in table.scan(wanted).plan_files():
        for batch in stream_batches(scan, table.io, task):
            yield pa.Table.from_batches([batch]).select(list(columns)).cast(schema)


def _is_before(rows: pa.Table, cursor: Cursor) -> pa.ChunkedArray:
    received_at, seq = cursor
    at = pa.scalar(received_at, SCHEMA.field("received_at").type)
    same = pc.and_(pc.equal(rows["received_at"], at), pc.less(rows["seq"], seq))
    return pc.or_(pc.less(rows["received_at"], at), same)


def _refusal(row: dict[str, Any], action: dict[str, Any] | None) -> Refusal:
    brief = {name: row[name] for name in BRIEF}
    if action is None:
        return Refusal(**brief)
    return Refusal(**brief, state=action["action"], settled_at=action["at"], note=action["note"], segment=action["segment"])


def _settled(catalog: Catalog) -> pa.Array:
    """The seqs of all settled messages, each once."""
    return pc.unique(_seqs_in(catalog, ACTIONS, AlwaysTrue()))


def _seqs_in(catalog: Catalog, table: Table, wanted: BooleanExpression) -> pa.Array:
    return _joined(_batches(catalog, table, ("seq",), wanted))


def _joined(pieces: Iterable[pa.Table]) -> pa.Array:
    """Concatenate the seqs of all pieces."""
    chunks = [chunk for rows in pieces for chunk in rows["seq"].chunks]
    return pa.concat_arrays(chunks) if chunks else pa.array([], pa.int64())


def _actions(catalog: Catalog, of: list[int]) -> dict[int, dict[str, Any]]:
    """The last action on each of these messages, by seq."""
    rows = rows_of(catalog, ACTIONS, In(term="seq", literals=set(of))) if of else []
    return {row["seq"]: row for row in sorted(rows, key=lambda row: row["at"])}
