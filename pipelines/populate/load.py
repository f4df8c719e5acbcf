"""Populates the queues with pending entries of the lake, and prunes ended ones: `python -m pipelines populate`.

Dispatchers may run at the same time, and a populate may be repeated: an entry that the queues have, or remember as ended, is not
queued again.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import NamedTuple

import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.tables import DATA, ECQ_INDEX, ECQ_PAYLOAD, ECQ_STATE, IDS, META, OUTCOMES
from manifold.queues import Forgotten, Loader, LoadResult, Policy
from manifold.runtime.redis import connect
from manifold.settings import Settings
from pipelines.ingest.publish import finish_committed_runs
from pipelines.lineage import emits_lineage
from pipelines.populate import ecq, ecq_news
from pipelines.populate.brakes import load_brakes
from pipelines.populate.ids_news import added_since_populate
from pipelines.populate.lock import populate_lock
from pipelines.populate.pending import candidates, pending
from pipelines.populate.snapshot_range import SnapshotRange, newest_before, newest_seqs
from pipelines.populate.workers import SPOILT, SPOILT_TRIGGERS, entry_loader, forget_ended, run_and_count
from pipelines.spark.parallelism import parallelism

MAX_BROADCAST_ROWS = 200_000  # entries whose keys are broadcast, so that the outcomes are not shuffled
ROWS_PER_PARTITION = 400_000  # a worker groups the rows of a partition in memory
MAX_NAMED_KEYS = 20  # vehicles, queues or triggers with a corrupt key that a result names
REBUILD_NEEDED = "rebuild needed: Redis does not hold what is pending; trigger rebuild_queues, or run `manifold rebuild`"
ENDED_LOOKBACK = timedelta(days=2)  # age of ended entries that are read if Redis does not know which it has forgotten
PERSISTED_AFTER = timedelta(minutes=10)  # after this time, Redis has surely persisted the loaded entries

TABLES_READ = (DATA, META, IDS, OUTCOMES, ECQ_PAYLOAD, ECQ_INDEX, ECQ_STATE)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Populated:
    """Result of a populate."""

    vehicles: int = 0  # vehicles to which entries were offered
    offered: int = 0  # offered entries
    queued: int = 0  # offered entries that were new to the queues
    superseded: int = 0  # offered entries that a newer entry has superseded
    forgotten: int = 0  # ended entries that the queues have forgotten
    rebuild_needed: bool = False  # whether the queues are not loaded, so that nothing was done
    spoilt: int = 0  # vehicles and compacted queues that got nothing, because one of their Redis keys has another type
    spoilt_named: tuple[str, ...] = ()  # some of these, each with that key
    spoilt_triggers: int = 0  # triggers whose Redis key has another type; dispatchers read these triggers from the lake
    spoilt_triggers_named: tuple[str, ...] = ()  # some of these keys
    compacted: int = 0  # compacted queues that were loaded
    compacted_queued: int = 0  # messages of these queues that became pending

    @property
    def problem(self) -> str | None:
        """A message that says which entries the queues lack, with the remedy; None if they lack none."""
        if self.rebuild_needed:
            return REBUILD_NEEDED
        if not self.spoilt:
            return None
        names = "; ".join(self.spoilt_named)
        if self.spoilt > len(self.spoilt_named):
            names += "; …"
        remedy = "delete these keys, then run `manifold rebuild`"
        return (
            f"vehicles under whose keys in Redis is something else got nothing ({self.spoilt}; all others did): {names}: {remedy}"
        )

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


class Loaded(NamedTuple):
    """Result of loading entries into the queues of vehicles."""

    vehicles: int = 0  # to which entries were offered
    offered: int = 0  # entries
    queued: int = 0  # entries that were new to the queues
    superseded: int = 0  # entries that a newer entry has superseded
    corrupt_vehicles: Sequence[str] = ()  # vehicles that got nothing, because one of their Redis keys has another type
    corrupt_triggers: Sequence[str] = ()  # Redis keys of triggers that have another type


@emits_lineage("populate", reads=TABLES_READ, writes=["queues"])
def populate(spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime, everything: bool = False) -> Populated:
    """Offer pending entries to the queues, and let the queues forget ended entries.

    Args:
        spark: a session over the catalog.
        catalog: the same catalog in PyIceberg.
        settings: the address of Redis, and the queue policy.
        now: the instant, timezone-aware, from which the retention counts back.
        everything: if true, offer all pending entries, and mark the queues as loaded. If false, offer the entries that were
            added to the lake since the last populate and were not enqueued directly; queues that are not loaded stay as they
            are, and the result says so.

    Raises:
        Retryable: another process is populating, or Redis lost the lock; run it again.
        redis.RedisError: Redis is unavailable or refuses.
    """
    redis = connect(settings.redis)
    with populate_lock(redis) as lock:
        if not everything and not Loader(redis, Policy.of(settings)).is_loaded():
            log.warning(REBUILD_NEEDED)  # older entries are missing, and would have to be queued before the new entries
            return Populated(rebuild_needed=True)
        newest_triggers: dict[int, int] = {}  # recorder → the seq up to which the queues get its triggers from the lake
        newest_messages: dict[int, int] = {}  # the same for messages of compacted queues
        if everything:
            newest_triggers = newest_seqs(catalog, stream=Stream.TRIGGER)
            newest_messages = newest_seqs(catalog, stream=Stream.ECQ)
            load_brakes(settings, redis, now)
            # A run is committed before its rows are in every table. The rows up to the seqs above must be there to be read.
            finish_committed_runs(catalog)
        ids, ended = added_since_populate(redis, catalog, everything=everything)
        pending_entries, ended_entries = _pending_and_ended(spark, settings, ids, ended, now, everything=everything)
        compacted = ecq.load_queues(spark, catalog, settings, redis, now=now, everything=everything)
        loaded = _load_entries(pending_entries, settings, now) if ids.rows else Loaded()
        lock.require_held()
        # The queues forget ended entries only after the offer: an offered entry may have ended since the lake was read, and
        # would be delivered a second time if the queues did not remember its end.
        forgotten = forget_ended(ended_entries, settings) if ended.rows else Forgotten(forgotten=0, kept=0)
        lock.require_held()
        if not forgotten.kept:  # otherwise the next populate must read the same outcomes again
            redis.set(keys.DONE_PRUNED, ended.end)
        # Redis may lose its last seconds, so entries that were ingested recently are offered again by the next populate.
        persisted_snapshot_id = newest_before(catalog, IDS, now - PERSISTED_AFTER)
        if persisted_snapshot_id is not None:
            redis.set(keys.POPULATED, persisted_snapshot_id)
        ecq_news.record_populated(redis, catalog, up_to=now - PERSISTED_AFTER)
        if everything:
            Loader(redis, Policy.of(settings)).mark_loaded(_unix_ms(now), newest_triggers, newest_messages)
    result = _result_of(Loader(redis, Policy.of(settings)), loaded, compacted, forgotten)
    _log_result(result, everything=everything)
    return result


def _result_of(loader: Loader, loaded: Loaded, compacted: LoadResult, forgotten: Forgotten) -> Populated:
    """Put the result together. `loader` finds out which Redis key of a vehicle has another type."""
    corrupt_queues = [ecq_queue(client_id) for client_id in compacted.spoilt]
    named = [f"{vehicle}: {loader.corrupt_key(vehicle)}" for vehicle in sorted(loaded.corrupt_vehicles)[:MAX_NAMED_KEYS]]
    named += [f"{queue}: a key of its queue holds another type" for queue in sorted(corrupt_queues)[:MAX_NAMED_KEYS]]
    return Populated(
        vehicles=loaded.vehicles,
        offered=loaded.offered,
        queued=loaded.queued,
        superseded=loaded.superseded,
        forgotten=forgotten.forgotten,
        spoilt=len(loaded.corrupt_vehicles) + len(corrupt_queues),
        spoilt_named=tuple(named),
        spoilt_triggers=len(loaded.corrupt_triggers),
        spoilt_triggers_named=tuple(loaded.corrupt_triggers[:MAX_NAMED_KEYS]),
        compacted=compacted.owners,
        compacted_queued=compacted.queued,
    )


def _log_result(result: Populated, *, everything: bool) -> None:
    """Log what the queues got, and the Redis keys of another type that somebody must delete."""
    if result.spoilt_triggers:
        log.warning(
            "redis keys of triggers have another type; dispatchers read these triggers from the lake",
            triggers=result.spoilt_triggers,
            keys=result.spoilt_triggers_named,
            remedy="delete these keys",
        )
    counts = {
        "vehicles": result.vehicles,
        "entries_offered": result.offered,
        "entries_queued": result.queued,
        "entries_superseded": result.superseded,
        "ended_entries_forgotten": result.forgotten,
        "compacted_queues": result.compacted,
        "compacted_messages_queued": result.compacted_queued,
    }
    if result.problem:
        log.error(
            "queues populated, except those with a redis key of another type",
            everything=everything,
            **counts,
            queues_skipped=result.spoilt,
            keys=result.spoilt_named,
            remedy="delete these keys, then run `manifold rebuild`",
        )
    else:
        log.info("queues populated", everything=everything, **counts)


def _pending_and_ended(
    spark: SparkSession, settings: Settings, ids: SnapshotRange, ended: SnapshotRange, now: datetime, *, everything: bool
) -> tuple[DataFrame, DataFrame]:
    """Return the pending entries to offer, and (vin, seq) of the ended entries that the queues may forget."""
    since = now - timedelta(days=settings.retention_days)
    entries = candidates(_read_added(spark, settings, ids), since=since, everything=everything)
    all_outcomes = spark.read.option("versionAsOf", ended.end).table(f"{settings.catalog_name}.{OUTCOMES.identifier}")
    outcomes = all_outcomes.where(sf.col("accepted_at") >= sf.lit(since))
    partitions = max(parallelism(spark), ceil(ids.rows / ROWS_PER_PARTITION))
    pending_entries = pending(entries, outcomes, partitions=partitions, broadcast_keys=ids.rows <= MAX_BROADCAST_ROWS)
    ended_entries = _read_added(spark, settings, ended)
    if ended.start is None:
        # The range has all outcomes. The latest are enough: usually the queues are new then and remember few ended entries, and
        # an entry that they go on remembering costs only a few bytes.
        ended_entries = ended_entries.where(sf.col("ended_at") >= sf.lit(now - ENDED_LOOKBACK))
    return pending_entries, ended_entries.select("vin", "seq")


def _read_added(spark: SparkSession, settings: Settings, added: SnapshotRange) -> DataFrame:
    """The rows that the snapshots of the range added; if the range has no start, all rows of the table at the end of the range.

    Must not be evaluated if the range has no rows: Spark rejects an incremental scan whose start is its end.
    """
    name = f"{settings.catalog_name}.{added.table.identifier}"
    if added.start is None:
        return spark.read.option("versionAsOf", added.end).table(name)
    return spark.read.option("start-snapshot-id", added.start).option("end-snapshot-id", added.end).table(name)


def _load_entries(entries: DataFrame, settings: Settings, now: datetime) -> Loaded:
    """Load the entries into the queues, on Spark workers."""
    load = entry_loader(settings.redis, Policy.of(settings), _unix_ms(now))
    counts, names = run_and_count(entries, load, ("owners", "offered", "queued", "superseded"))
    return Loaded(
        vehicles=counts["owners"],
        offered=counts["offered"],
        queued=counts["queued"],
        superseded=counts["superseded"],
        corrupt_vehicles=names[SPOILT],
        corrupt_triggers=sorted(set(names[SPOILT_TRIGGERS])),  # every worker with entries of a trigger names it
    )


def _unix_ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)
