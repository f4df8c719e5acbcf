"""Single messages of compacted queues from the lake."""

from collections.abc import Collection

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, In

from adapters.lake_reads import rows_of, triggers_filter
from contracts.tables import ECQ_PAYLOAD

Message = tuple[str, bytes]  # key and payload


def read_messages(catalog: Catalog, entries: Collection[tuple[str, int]]) -> dict[tuple[str, int], Message]:
    """The messages of those of `entries` (client id, seq) that the lake has; only their days' partitions are read.

    Raises:
        pyiceberg.exceptions.NoSuchTableError: nothing has been ingested yet.
    """
    if not entries:
        return {}
    wanted = And(
        triggers_filter("ts", {seq for _, seq in entries}), In(term="client_id", literals={client_id for client_id, _ in entries})
    )
    rows = rows_of(catalog, ECQ_PAYLOAD, wanted, ("client_id", "seq", "key", "payload"))
    found = {(row["client_id"], row["seq"]): (row["key"], row["payload"]) for row in rows}
    return {entry: found[entry] for entry in entries if entry in found}
