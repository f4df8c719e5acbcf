"""Payloads from the lake, at a cost that does not grow with it.

`sdv_fanout_meta` says of each data_id when its payload's row was stored; it is small, and compaction sorts it by data_id. With
that instant, a scan of `sdv_fanout_data` touches one day, of it the file of one run, and of that one small group of rows.
"""

from collections.abc import Collection, Iterator
from itertools import islice

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, BooleanExpression, In, IsNull, Or
from pyiceberg.table import Table as IcebergTable

from adapters.lake import rows_of
from contracts.tables import DATA, META, PAYLOAD_INDEX

AT_ONCE = 200  # values up to which Iceberg compares a filter's `in` with the bounds of files


def read_payload(catalog: Catalog, data_id: str) -> bytes | None:
    """The payload of `data_id`; None if the lake does not have it (or has no tables yet)."""
    return read_payloads(catalog, (data_id,)).get(data_id)


def read_payloads(catalog: Catalog, data_ids: Collection[str]) -> dict[str, bytes]:
    """The payloads of those of `data_ids` that the lake has, by data_id. All of them are in memory at once."""
    found: dict[str, bytes] = {}
    remaining = iter(data_ids)
    while some := list(islice(remaining, AT_ONCE)):
        found |= _read(catalog, some)
    return found


def _read(catalog: Catalog, data_ids: Collection[str]) -> dict[str, bytes]:
    rows = [row for each in _filters(catalog, data_ids) for row in rows_of(catalog, DATA, each, ("data_id", "payload", "seq"))]
    rows.sort(key=lambda row: row["seq"], reverse=True)  # of several rows of one data_id the first counts, and comes last here
    return {row["data_id"]: row["payload"] for row in rows}


def _filters(catalog: Catalog, data_ids: Collection[str]) -> Iterator[BooleanExpression]:
    """Which rows of `sdv_fanout_data` to read: those of known instants, and those for which every file has to be looked into."""
    named = In(term="data_id", literals=set(data_ids))
    index = rows_of(catalog, META, named, ("data_id", "stored_at")) if _is_indexed(catalog) else None
    if index is None:
        yield named
        return
    instants = {row["data_id"]: row["stored_at"] for row in index}
    known = {data_id: instant for data_id, instant in instants.items() if instant is not None}
    if known:
        moments = In(term="first_seen_at", literals={instant.isoformat() for instant in known.values()})
        yield And(In(term="data_id", literals=set(known)), moments)
    if unknown := instants.keys() - known.keys():
        yield In(term="data_id", literals=unknown)


def _is_indexed(catalog: Catalog) -> bool:
    """Whether every payload has its name in `sdv_fanout_meta`; not so in a lake of an earlier release."""
    return catalog.table_exists(META.identifier) and PAYLOAD_INDEX in catalog.load_table(META.identifier).properties


def is_filled(names: IcebergTable, snapshot_id: int | None = None) -> bool:
    """Whether every row of `sdv_fanout_meta` in this snapshot (None: main's) says its payload's SHA-1 and place.

    Rows of an earlier release do not, nor does what a rollback has brought back. Only the files' own counts are read.
    """
    unfilled = Or(IsNull(term="sha1"), IsNull(term="stored_at"))
    try:
        return not any(True for _ in names.scan(unfilled, snapshot_id=snapshot_id).plan_files())
    except ValueError:  # the snapshot is older than these columns
        return False
