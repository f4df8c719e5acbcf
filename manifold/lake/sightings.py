"""Folds sightings of payloads, the rows of `sdv_fanout_meta`: every run appends one for each data_id that it saw.

Neither the order of the rows nor earlier folds change the result. `pipelines.ingest.transforms` folds on Spark by the same two
constants.
"""

import pyarrow as pa

from manifold.contracts.tables import META

# Sort order before folding, so that `first` yields the sha1 and the location of the payload that was stored first.
BY_PAYLOAD = ("stored_at", "sha1")
FOLDS = {"first_seen_at": "min", "last_seen_at": "max", "times_seen": "sum", "sha1": "first", "stored_at": "first"}


def folded(sightings: pa.Table) -> pa.Table:
    """Return one row for each data_id, with the columns of `sightings` that are in FOLDS; others are dropped."""
    names = [name for name in sightings.column_names if name == "data_id" or name in FOLDS]
    schema = pa.schema([META.arrow_schema.field(name) for name in names])
    rows = sightings.select(names).cast(schema)
    if by := [(name, "ascending") for name in BY_PAYLOAD if name in names]:
        rows = rows.sort_by(by)
    folds = [(name, FOLDS[name]) for name in names if name != "data_id"]
    found = rows.group_by("data_id", use_threads=False).aggregate(folds)
    return found.rename_columns({f"{name}_{fold}": name for name, fold in folds}).select(names).cast(schema)
