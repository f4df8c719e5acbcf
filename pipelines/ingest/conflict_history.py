"""Finds messages that must stay refused on re-ingest, because their data_id first arrived with other bytes.

A repair removes segments from the ledger, and the next run ingests them again as new. By then, the first payload of the data_id
may be missing from the lake, and no segment that is ingested again may contain it. Without a payload to compare, the refused
bytes would be accepted and sent to vehicles. So a repair keeps the quarantine rows of such messages, and this module reads them.
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

# The constant parts of the reason in quarantine: before, between and after the data_id and the digest.
BEFORE, BETWEEN, AFTER = OTHER_BYTES.split("%s")

Bounds = tuple[str, int, int]  # path of a segment, its lowest and highest seq


def refused_for_their_bytes(catalog: Catalog, base: Mapping[str, int], first: int, last: int) -> set[int]:
    """Seqs in [first, last] of quarantined messages whose bytes differ from the first payload of their data_id.

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
    is_in_range = And(where(GreaterThanOrEqual, "seq", first), where(LessThanOrEqual, "seq", last))
    row_filter = And(is_in_range, where(StartsWith, "reason", BEFORE))
    seqs: set[int] = set()
    for batch in table.scan(row_filter, ("seq", "reason"), snapshot_id=snapshot.snapshot_id).to_arrow_batch_reader():
        is_conflict = pc.and_(pc.match_substring(batch["reason"], BETWEEN), pc.ends_with(batch["reason"], AFTER))
        seqs.update(batch.filter(is_conflict)["seq"].to_pylist())
    return seqs


def still_refused(
    catalog: Catalog, base: Mapping[str, int], archive: Archive, segments: Iterable[Bounds]
) -> dict[str, list[int]]:
    """Path → seqs of the messages in that segment that must stay refused. Segments without such messages are left out.

    Only segments whose seq range contains a refused seq are read. Unreadable files are left out, because they are refused as a
    whole.
    """
    all_bounds = list(segments)
    if not all_bounds:
        return {}
    lowest = min(first for _, first, _ in all_bounds)
    highest = max(last for _, _, last in all_bounds)
    refused_seqs = refused_for_their_bytes(catalog, base, lowest, highest)
    refused_by_path: dict[str, list[int]] = {}
    for path, first, last in all_bounds:
        if not any(first <= seq <= last for seq in refused_seqs):
            continue
        try:
            seqs = [seq for seq in seqs_of(archive, path) if seq in refused_seqs]
        except Unreadable:
            continue
        if seqs:
            refused_by_path[path] = seqs
    return refused_by_path
