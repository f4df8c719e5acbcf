"""Compacts compacted queues in the lake: removes superseded messages and settled states, and adds positions in their place."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from manifold.contracts.tables import ECQ_INDEX, ECQ_PAYLOAD, ECQ_SEQNO, ECQ_STATE
from manifold.lake.commits import retry_conflicts
from manifold.settings import Settings
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.maintenance_run import until_not_overtaken
from pipelines.ingest.write_ecq import folded_rows
from pipelines.maintenance.change_rows import delete_rows, insert_or_delete_rows
from pipelines.maintenance.compaction_run import compaction_attempt, write_and_publish
from pipelines.maintenance.ecq_plan import POSITION, STATE, SUPERSEDED, compaction
from pipelines.maintenance.ecq_rows import plan_changes
from pipelines.populate.snapshot_range import range_since

COMPACTION_DELAY = timedelta(days=1)  # no acknowledgement is expected later than this
COMPACTED = "manifold.ecq-compacted"  # property of ecq_index: JSON, table → id of the snapshot after its last compaction
COMPACTED_TABLES = (ECQ_INDEX, ECQ_STATE, ECQ_SEQNO)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class QueuesCompacted:
    """The numbers of rows removed, and of positions that were added in place of states."""

    messages: int = 0
    states: int = 0
    positions: int = 0
    seqnos: int = 0


def has_queue_work(catalog: Catalog) -> bool:
    """Whether a table of compacted queues has new rows since the last compaction."""
    text = catalog.load_table(ECQ_INDEX.identifier).properties.get(COMPACTED, "{}")
    try:
        compacted = {name: int(snapshot_id) for name, snapshot_id in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):  # the property is malformed, so all rows count as new
        compacted = {}
    return any(range_since(catalog, table, compacted.get(table.name)).rows for table in COMPACTED_TABLES)


def compact_queues(spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime) -> QueuesCompacted:
    """Remove superseded messages, settled states and outdated sequence numbers; return their numbers. Idempotent.

    Raises:
        Overtaken: other runs kept being published first; the tables are unchanged, run it again.
    """
    return until_not_overtaken()(lambda: _compact(spark, catalog, settings, now))


@retry_conflicts
def record_compacted(catalog: Catalog) -> None:
    """Record that all rows that are in main now are compacted."""
    heads = {table.name: catalog.load_table(table.identifier).metadata.current_snapshot_id for table in COMPACTED_TABLES}
    with catalog.load_table(ECQ_INDEX.identifier).transaction() as change:
        change.set_properties({COMPACTED: json.dumps(heads)})


def _compact(spark: SparkSession, catalog: Catalog, settings: Settings, now: datetime) -> QueuesCompacted:
    """Make one attempt at the compaction, on main as it is now."""
    attempt = compaction_attempt(spark, catalog, settings, now)
    changes = plan_changes(attempt, partial(compaction, settled_before=now - COMPACTION_DELAY)).persist()
    seqnos = _older_seqnos(attempt.main(ECQ_SEQNO)).persist()
    try:
        counts = {row["what"]: row["count"] for row in changes.groupBy("what").count().collect()}
        result = QueuesCompacted(
            messages=counts.get(SUPERSEDED, 0),
            states=counts.get(STATE, 0),
            positions=counts.get(POSITION, 0),
            seqnos=seqnos.count(),
        )
        if result == QueuesCompacted():  # no table needs a change
            return result
        write_and_publish(attempt, lambda: _write(attempt, changes, seqnos, result))
    finally:
        changes.unpersist()
        seqnos.unpersist()
    log.info(
        "superseded rows of compacted queues removed",
        run_id=attempt.run_id,
        messages=result.messages,
        states=result.states,
        positions_added=result.positions,
        outdated_seqnos=result.seqnos,
    )
    return result


def _write(attempt: Attempt, changes: DataFrame, seqnos: DataFrame, counts: QueuesCompacted) -> None:
    """Write the changes to the branches of the attempt. `counts` are the numbers of changes."""
    if counts.messages:
        superseded = changes.where(sf.col("what") == SUPERSEDED).select("seq")
        for table in (ECQ_INDEX, ECQ_PAYLOAD):
            delete_rows(attempt, table, superseded)
    if counts.states or counts.positions:
        states = folded_rows(changes.where(sf.col("what").isin([STATE, POSITION])), is_new=sf.col("what") == POSITION)
        insert_or_delete_rows(attempt, ECQ_STATE, states, "is_new")
    if counts.seqnos:
        delete_rows(attempt, ECQ_SEQNO, seqnos)


def _older_seqnos(seqnos: DataFrame) -> DataFrame:
    """(client_id, last_seq) of rows whose client also has a row with a greater `last_seq`."""
    greatest = seqnos.groupBy("client_id").agg(sf.max("last_seq").alias("greatest"))
    return seqnos.join(greatest, "client_id").where("last_seq < greatest").select("client_id", "last_seq").distinct()
