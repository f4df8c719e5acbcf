"""Sightings of payloads, the rows of `sdv_fanout_meta`: every run adds one for each data_id that it saw. Readers fold them.

The order of the rows does not matter, nor does it whether some of them were folded before. Spark's jobs fold by
`pipelines.ingest.transforms.folded`.
"""

import pyarrow as pa

from manifold.contracts.tables import META

# The sha1 and the place of the payload that was stored first: rows are sorted by these before they are folded.
BY_PAYLOAD = ("stored_at", "sha1")
FOLDS = {"first_seen_at": "min", "last_seen_at": "max", "times_seen": "sum", "sha1": "first", "stored_at": "first"}


def folded(sightings: pa.Table) -> pa.Table:
    """One row for each data_id, with those columns of the rows that can be folded; they may lack some, and have others."""
    names = [name for name in sightings.column_names if name == "data_id" or name in FOLDS]
    schema = pa.schema([META.arrow_schema.field(name) for name in names])
    rows = sightings.select(names).cast(schema)
    if by := [(name, "ascending") for name in BY_PAYLOAD if name in names]:
        rows = rows.sort_by(by)
    folds = [(name, FOLDS[name]) for name in names if name != "data_id"]
    found = rows.group_by("data_id", use_threads=False).aggregate(folds)
    return found.rename_columns({f"{name}_{fold}": name for name, fold in folds}).select(names).cast(schema)
