"""Reads refused messages: pages of them, newest first, or one with its bytes. No Spark.

A platform that publishes nonsense for a night leaves millions of rows, and dropping them all at once adds as many more.
Both are read a piece at a time. In memory are only the rows of a page, and eight bytes for each settled message.
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

Cursor = tuple[datetime, int]  # the place of a refusal in the list: when it was received, and its seq


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refused message, and what became of it."""

    seq: int
    received_at: datetime
    stream: str
    topic: str
    reason: str
    state: str = OPEN
    settled_at: datetime | None = None
    note: str | None = None
    segment: str | None = None  # of a replay: what brings it again
    payload: bytes = b""  # only where one is asked for

    @property
    def cursor(self) -> Cursor:
        """Where the next page begins after it."""
        return self.received_at, self.seq


@dataclass(frozen=True, slots=True)
class RefusalFilter:
    """Which refusals: of one stream, since an instant (UTC), with a text in their reason, in any case; `settled` ones too."""

    stream: str | None = None
    since: datetime | None = None
    matching: str = ""
    settled: bool = False

    @property
    def filter(self) -> BooleanExpression:
        """What files and row groups can be chosen by."""
        wanted: BooleanExpression = AlwaysTrue()
        if self.stream is not None:
            wanted = And(wanted, where(EqualTo, "stream", self.stream))
        if self.since is not None:
            wanted = And(wanted, where(GreaterThanOrEqual, "received_at", self.since))
        return wanted


@dataclass(frozen=True, slots=True)
class Page:
    """Some refusals, newest first."""

    refusals: list[Refusal]
    total: int  # all that were asked for, on this page and others
    more: bool  # there are older ones


def page(catalog: Catalog, asked: RefusalFilter, *, limit: int, before: Cursor | None = None) -> Page:
    """The newest `limit` refusals that were asked for, of those `before` a place."""
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
    """The seqs of all that were asked for, in order."""
    found = _joined(_pieces(catalog, asked, _settled(catalog)))
    return found.sort().to_pylist()  # type: ignore[no-any-return]


def refusal(catalog: Catalog, seq: int) -> Refusal:
    """One of them, with its payload.

    Raises:
        Permanent: no message with this seq was refused.
    """
    rows = rows_of(catalog, QUARANTINE, where(EqualTo, "seq", seq), (*BRIEF, "payload"))
    if not rows:
        raise Permanent(NEVER % seq)
    return replace(_refusal(rows[-1], _actions(catalog, [seq]).get(seq)), payload=rows[-1]["payload"])


def open_among(catalog: Catalog, seqs: Collection[int]) -> list[int]:
    """Those of these seqs about which nothing was done yet, each once, in the order given: one pass, however many they are.

    Raises:
        Permanent: no message with one of these seqs was refused.
    """
    if beyond := [seq for seq in seqs if not -MAX_SEQ <= seq <= MAX_SEQ]:
        raise Permanent(NEVER % beyond[0])
    asked = pa.array(list(dict.fromkeys(seqs)), pa.int64())
    if not len(asked):
        return []
    span = pc.min_max(asked).as_py()
    between = And(where(GreaterThanOrEqual, "seq", span["min"]), where(LessThanOrEqual, "seq", span["max"]))
    refused = _seqs_in(catalog, QUARANTINE, between)
    if len(never := asked.filter(pc.invert(pc.is_in(asked, refused)))):
        raise Permanent(NEVER % never[0].as_py())
    return asked.filter(pc.invert(pc.is_in(asked, _settled(catalog)))).to_pylist()  # type: ignore[no-any-return]


def _pieces(catalog: Catalog, asked: RefusalFilter, acted: pa.Array) -> Iterator[pa.Table]:
    """The rows that were asked for, each seq once; refused again, a replay has a second row. `acted`: seqs of what is settled."""
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
    """These columns of the rows that fit, one file after the other and of a file as much as its reader gives at once.

    PyIceberg's own reader of batches reads all files ahead.
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
    """The seqs of all messages about which something was done, each once."""
    return pc.unique(_seqs_in(catalog, ACTIONS, AlwaysTrue()))


def _seqs_in(catalog: Catalog, table: Table, wanted: BooleanExpression) -> pa.Array:
    return _joined(_batches(catalog, table, ("seq",), wanted))


def _joined(pieces: Iterable[pa.Table]) -> pa.Array:
    """The seqs of all of them."""
    chunks = [chunk for rows in pieces for chunk in rows["seq"].chunks]
    return pa.concat_arrays(chunks) if chunks else pa.array([], pa.int64())


def _actions(catalog: Catalog, seqs: list[int]) -> dict[int, dict[str, Any]]:
    """The last action on each of these messages, by seq."""
    rows = rows_of(catalog, ACTIONS, In(term="seq", literals=set(seqs))) if seqs else []
    return {row["seq"]: row for row in sorted(rows, key=lambda row: row["at"])}
