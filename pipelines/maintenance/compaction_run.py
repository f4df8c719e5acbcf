"""The run in which a compaction removes rows.

Like an ingest, the run takes effect by one compare-and-swap on the ledger, although no query result changes. So an ingest that
began before the compaction starts again, and a rollback of an earlier run also undoes the compaction.
"""

import secrets
from collections.abc import Callable
from datetime import datetime

from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import Catalog
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from manifold.contracts.tables import SEGMENTS
from manifold.settings import Settings
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.branches import Overtaken, branch_of, drop_branches, open_run
from pipelines.ingest.lease import LeaseLost
from pipelines.ingest.publish import publish
from pipelines.ingest.run import Ingested, Run


def compaction_attempt(spark: SparkSession, catalog: Catalog, settings: Settings, now: datetime) -> Attempt:
    """Make an attempt at a new compaction run, based on main as it is now. The run is not open yet."""
    run_id = f"compact_{now:%Y%m%dT%H%M%S}_{secrets.token_hex(3)}"
    return Attempt.on_main(Run(spark, catalog, settings, run_id, now))


def write_and_publish(attempt: Attempt, write: Callable[[], object]) -> None:
    """Open the run, let `write` change its branches, and publish it.

    Raises:
        Overtaken: another run was published since the attempt was made; the tables are unchanged.
        LeaseLost: another job has taken this job's lease; the tables are unchanged.
    """
    open_run(attempt.catalog, attempt.run_id, attempt.base[SEGMENTS.name], attempt.now)
    try:
        write()
        no_segments = SEGMENTS.arrow_schema.empty_table()
        attempt.append_to_ledger(no_segments, Ingested(attempt.run_id, written=attempt.written))
        publish(attempt.catalog, attempt.run_id, must=True)  # raises Overtaken if another job has closed the run
    except (Overtaken, LeaseLost, Py4JJavaError, PySparkException):
        drop_branches(attempt.catalog, branch_of(attempt.run_id))
        raise
