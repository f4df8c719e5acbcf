"""Messages that stay refused on re-ingest, because their data_id first arrived with other bytes.

A repair forgets segments, and the next run ingests them again as new. By then the original payload may be gone from the lake,
and its message gone from the archive or in a segment that is not ingested again. Judged afresh, the refused bytes would be
accepted and sent to vehicles. So the quarantine rows of such messages stay, and are consulted here.
"""

from collections.abc import Iterable, Mapping

import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, GreaterThanOrEqual, LessThanOrEqual, StartsWith

from manifold.archive.content import Unreadable
from manifold.archive.parsing import OTHER_BYTES
from manifold.archive.probing import seqs_of
from manifold.archive.store import Archive
from manifold.contracts.tables import QUARANTINE
from manifold.lake.catalog import where
from pipelines.ingest.branches import properties_of

BEFORE, BETWEEN, AFTER = OTHER_BYTES.split("%s")

Bounds = tuple[str, int, int]  # path of a segment, its lowest and highest seq


def refused_for_their_bytes(catalog: Catalog, base: Mapping[str, int], first: int, last: int) -> set[int]:
    """Seqs in [first, last] of messages that are in quarantine for conflicting with the bytes of their data_id.

    Args:
        catalog: the lake's catalog.
        base: the snapshots to read, by table name.
        first: the lowest seq.
        last: the highest seq.
    """
    table = catalog.load_table(QUARANTINE.identifier)
    snapshot = table.snapshot_by_id(base[QUARANTINE.name])
    if snapshot is None or properties_of(snapshot).get("total-records") == "0":
        return set()
    # An imported archive has arbitrary seqs and receive times, so no day can be pruned.
    seqs = And(where(GreaterThanOrEqual, "seq", first), where(LessThanOrEqual, "seq", last))
    wanted = And(seqs, where(StartsWith, "reason", BEFORE))
    found: set[int] = set()
    for batch in table.scan(wanted, ("seq", "reason"), snapshot_id=snapshot.snapshot_id).to_arrow_batch_reader():
        mine = pc.and_(pc.match_substring(batch["reason"], BETWEEN), pc.ends_with(batch["reason"], AFTER))
        found.update(batch.filter(mine)["seq"].to_pylist())
    return found


def still_refused(
    catalog: Catalog, base: Mapping[str, int], archive: Archive, segments: Iterable[Bounds]
) -> dict[str, list[int]]:
    """By path, the seqs in these segments that stay refused; reads only segments that may contain some.

    An unreadable file has none.
    """
    bounds = list(segments)
    if not bounds:
        return {}
    refused = refused_for_their_bytes(catalog, base, min(first for _, first, _ in bounds), max(last for _, _, last in bounds))
    found: dict[str, list[int]] = {}
    for path, first, last in bounds:
        if not any(first <= seq <= last for seq in refused):
            continue
        try:
            again = [seq for seq in seqs_of(archive, path) if seq in refused]
        except Unreadable:
            continue
        if again:
            found[path] = again
    return found
