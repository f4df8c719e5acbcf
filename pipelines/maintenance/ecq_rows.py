"""Brings all rows of a compacted-queue client into one Spark partition, and applies a function to them there."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame

from manifold.contracts.tables import ECQ_INDEX, ECQ_STATE
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.branches import properties_of
from pipelines.maintenance.ecq_plan import CHANGES_IN_SPARK
from pipelines.populate.ecq_fold import UNITED, united
from pipelines.spark.parallelism import parallelism

ROWS_PER_PARTITION = 400_000

Plan = Callable[[pa.Table], Iterator[pa.Table]]


def planned(attempt: Attempt, base: Mapping[str, int], plan: Plan) -> DataFrame:
    """Apply `plan` to index and state as of `base`; the result has the columns of `ecq_plan.CHANGES`."""
    rows = united(attempt.main(ECQ_INDEX, base[ECQ_INDEX.name]), attempt.main(ECQ_STATE, base[ECQ_STATE.name]))
    count = sum(_total(attempt, table.identifier, base[table.name]) for table in (ECQ_INDEX, ECQ_STATE))
    parts = max(parallelism(attempt.spark), -(-count // ROWS_PER_PARTITION))

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [pa.Table.from_batches([batch]).cast(UNITED) for batch in batches]
        if tables:
            for changes in plan(pa.concat_tables(tables)):
                yield from changes.to_batches()

    return rows.repartition(parts, "client_id").mapInArrow(work, CHANGES_IN_SPARK)


def _total(attempt: Attempt, identifier: str, snapshot_id: int) -> int:
    snapshot = attempt.catalog.load_table(identifier).snapshot_by_id(snapshot_id)
    return int(properties_of(snapshot).get("total-records", "0")) if snapshot is not None else 0
