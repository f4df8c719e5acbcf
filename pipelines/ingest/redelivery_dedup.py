"""Deduplicates statuses and refused messages that RabbitMQ has delivered twice.

A consumer that dies after writing a message to its journal and before the ack receives the message again, and records it a second
time. Two statuses are the same message if their key fields are equal, two refused messages if their digests are equal. Raw
signals are deduplicated in `write_signals`.
"""

from datetime import timedelta
from typing import NamedTuple

import structlog
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from manifold.contracts.tables import QUARANTINE, XRAY_STATUS, Table
from pipelines.ingest.attempt import Attempt

log = structlog.get_logger(__name__)


class Identity(NamedTuple):
    """How to recognize two rows of a table as the same message: the values in all key columns are equal and not null."""

    table: Table
    keys: tuple[str, ...]
    instant: str  # column with an instant, by which the search in the table is limited
    max_difference: timedelta = timedelta()  # maximum difference between the instants of two rows with the same message


STATUS = Identity(XRAY_STATUS, ("device_id", "seen_at", "content_digest"), "seen_at")
# A dead letter stays in RabbitMQ for a week, and may be redelivered until then.
REFUSED = Identity(QUARANTINE, ("digest",), "received_at", timedelta(days=8))


def new_rows(attempt: Attempt, rows: DataFrame, identity: Identity) -> DataFrame:
    """Remove the rows of messages that main of the table has at the base snapshot.

    Of several rows with the same message, only the row with the lowest seq stays. Rows with a null key all stay.
    """
    keys, instant = identity.keys, identity.instant
    has_keys = " and ".join(f"{key} is not null" for key in keys)
    keyed = rows.select("seq", instant, *(key for key in keys if key != instant)).where(has_keys).persist()
    try:
        bounds = keyed.agg(sf.min(instant).alias("first"), sf.max(instant).alias("last")).first()
        assert bounds is not None  # an aggregation has one row
        if bounds["first"] is None:  # every row has a null key
            return rows
        first = bounds["first"] - identity.max_difference
        last = bounds["last"] + identity.max_difference
        main = attempt.main(identity.table)
        if all(key in main.columns for key in keys):
            known = main.where(sf.col(instant).between(sf.lit(first), sf.lit(last))).select(*keys).distinct()
        else:  # the table was made by an earlier release without these columns, which recorded no such messages
            known = keyed.select(*keys).limit(0)
        known = known.withColumn("known", sf.lit(True))
        occurrence = sf.row_number().over(Window.partitionBy(*keys).orderBy("seq"))
        joined = keyed.withColumn("occurrence", occurrence).join(known, list(keys), "left")
        repeated = joined.where("occurrence > 1 or known").select("seq").localCheckpoint()
    finally:
        keyed.unpersist()
    count = repeated.count()
    if not count:
        return rows
    log.info("duplicate deliveries skipped", run_id=attempt.run_id, table=identity.table.name, messages=count)
    return rows.join(repeated, "seq", "left_anti")
