"""Deduplicates statuses and refused messages that RabbitMQ has delivered twice.

A consumer that dies between its journal and the ack receives the same message again, and records it again. Raw signals have
their own key (`write_signals`). Statuses are equal if their fields are, refused messages if their digests are.
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
    """Columns by which two rows of a table are the same message; a null equals nothing."""

    table: Table
    keys: tuple[str, ...]
    at: str  # an instant: equal in both rows, or no further apart than `apart`
    apart: timedelta = timedelta()


STATUS = Identity(XRAY_STATUS, ("device_id", "seen_at", "content_digest"), "seen_at")
# A dead letter stays in RabbitMQ for a week, and may be redelivered until then.
REFUSED = Identity(QUARANTINE, ("digest",), "received_at", timedelta(days=8))


def new_rows(attempt: Attempt, rows: DataFrame, of: Identity, base: int) -> DataFrame:
    """Keep the first row of each message, by seq, and none if the table already has the message."""
    has_keys = " and ".join(f"{key} is not null" for key in of.keys)
    brief = rows.select("seq", of.at, *(key for key in of.keys if key != of.at)).where(has_keys).persist()
    try:
        bounds = brief.agg(sf.min(of.at).alias("first"), sf.max(of.at).alias("last")).first()
        assert bounds is not None  # an aggregation has one row
        if bounds["first"] is None:
            return rows
        near = sf.col(of.at).between(sf.lit(bounds["first"] - of.apart), sf.lit(bounds["last"] + of.apart))
        main = attempt.main(of.table, base)
        if all(key in main.columns for key in of.keys):
            known = main.where(near).select(*of.keys).distinct()
        else:  # nothing is known: an earlier release, whose table has no such columns, recorded none of these messages
            known = brief.select(*of.keys).limit(0)
        known = known.withColumn("known", sf.lit(True))
        place = sf.row_number().over(Window.partitionBy(*of.keys).orderBy("seq"))
        joined = brief.withColumn("place", place).join(known, list(of.keys), "left")
        repeated = joined.where("place > 1 or known").select("seq").localCheckpoint()
    finally:
        brief.unpersist()
    count = repeated.count()
    if not count:
        return rows
    log.info("duplicate deliveries skipped", table=of.table.name, messages=count)
    return rows.join(repeated, "seq", "left_anti")
