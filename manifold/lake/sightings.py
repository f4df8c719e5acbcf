"""Folds sightings to one row per data_id. Sightings are the rows of `sdv_fanout_meta`: a run appends one for each data_id it saw.

To fold is to aggregate, with a result that depends neither on the order of the rows nor on earlier folds.
`pipelines.ingest.write_payloads` folds on Spark, and uses the same constants.
"""

import pyarrow as pa

from manifold.contracts.tables import META

# The sort order before the fold, so that the aggregation `first` yields sha1 and instant of the payload that was stored first.
# FOLDS has the aggregation of each column.
BY_PAYLOAD = ("stored_at", "sha1")
FOLDS = {"first_seen_at": "min", "last_seen_at": "max", "times_seen": "sum", "sha1": "first", "stored_at": "first"}


def folded(sightings: pa.Table) -> pa.Table:
    """Fold sightings to one row per data_id. Of the columns of `sightings`, the result has data_id and those in FOLDS."""
    names = [name for name in sightings.column_names if name == "data_id" or name in FOLDS]
    schema = pa.schema([META.arrow_schema.field(name) for name in names])
    rows = sightings.select(names).cast(schema)
    sort_keys = [(name, "ascending") for name in BY_PAYLOAD if name in names]
    if sort_keys:  # the aggregation `first` depends on the order, and therefore on a single thread below
        rows = rows.sort_by(sort_keys)
    aggregations = [(name, FOLDS[name]) for name in names if name != "data_id"]
    aggregated = rows.group_by("data_id", use_threads=False).aggregate(aggregations)
    # Arrow names a result after column and aggregation.
    original_names = {f"{name}_{aggregation}": name for name, aggregation in aggregations}
    return aggregated.rename_columns(original_names).select(names).cast(schema)
