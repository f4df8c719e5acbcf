"""Applies a function to the rows of compacted queues on Spark workers, all rows of a client in one call."""

from collections.abc import Callable, Iterable, Iterator
from math import ceil

import pyarrow as pa
from pyspark.sql import DataFrame

from manifold.contracts.tables import ECQ_INDEX, ECQ_STATE, Table
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.branches import properties_of
from pipelines.maintenance.ecq_plan import CHANGES_IN_SPARK
from pipelines.populate.ecq_fold import UNITED, united
from pipelines.spark.parallelism import parallelism

ROWS_PER_PARTITION = 400_000

Plan = Callable[[pa.Table], Iterator[pa.Table]]  # all rows (`UNITED`) of some clients → rows of `CHANGES`, in several tables


def plan_changes(attempt: Attempt, plan: Plan) -> DataFrame:
    """Apply `plan` to the rows of index and state at the base snapshots; return rows of `ecq_plan.CHANGES`.

    Each partition has all rows of its clients, and `plan` is called once with all rows of a partition.
    """
    rows = united(attempt.main(ECQ_INDEX), attempt.main(ECQ_STATE))
    row_count = sum(_row_count(attempt, table) for table in (ECQ_INDEX, ECQ_STATE))
    partitions = max(parallelism(attempt.spark), ceil(row_count / ROWS_PER_PARTITION))

    def apply_plan(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [pa.Table.from_batches([batch]).cast(UNITED) for batch in batches]
        if tables:  # the partition has clients
            for changes in plan(pa.concat_tables(tables)):
                yield from changes.to_batches()

    return rows.repartition(partitions, "client_id").mapInArrow(apply_plan, CHANGES_IN_SPARK)


def _row_count(attempt: Attempt, table: Table) -> int:
    """The number of the table's rows at the base snapshot, from the snapshot's summary; 0 if the summary does not tell it.

    It only decides the number of partitions.
    """
    snapshot = attempt.catalog.load_table(table.identifier).snapshot_by_id(attempt.base[table.name])
    return int(properties_of(snapshot).get("total-records", "0")) if snapshot is not None else 0
