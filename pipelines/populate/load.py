"""Populates the queues with pending entries of the lake, and prunes ended ones: `python -m pipelines populate`.

Safe beside running dispatchers, and safe to repeat: an entry that the queues hold, or held until recently, is not queued again.
"""

import json
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.tables import DATA, ECQ_INDEX, ECQ_PAYLOAD, ECQ_STATE, IDS, META, OUTCOMES
from manifold.queues import Loader, LoadResult, Policy
from manifold.runtime.redis import connect
from manifold.settings import Settings
from pipelines.ingest.publish import finish_committed_runs
from pipelines.lineage import emits_lineage
from pipelines.populate import ecq, ecq_news
from pipelines.populate.brakes import load_brakes
from pipelines.populate.ids_news import unpopulated
from pipelines.populate.lock import populate_lock
from pipelines.populate.pending import candidates, pending
from pipelines.populate.snapshot_range import SnapshotRange, newest_before, newest_seqs
from pipelines.populate.worker_errors import SPOILT, TRIGGERS
from pipelines.populate.workers import counted, forget_ended, loading
from pipelines.spark.parallelism import parallelism

MAX_BROADCAST_ROWS = 200_000  # entries whose keys are broadcast, so that the outcomes are not shuffled
ROWS_PER_PARTITION = 400_000  # per partition: a worker groups them in memory
MAX_NAMED = 20  # vehicles that a result names
REBUILD_NEEDED = "rebuild needed: Redis does not hold what is pending; trigger rebuild_queues, or run `manifold rebuild`"
ENDED_LOOKBACK = timedelta(days=2)  # how far back ended entries are read for an unknown Redis
PERSISTED_AFTER = timedelta(minutes=10)  # Redis has persisted for good what was loaded this long ago

READ = (DATA, META, IDS, OUTCOMES, ECQ_PAYLOAD, ECQ_INDEX, ECQ_STATE)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Populated:
    """Result of a populate."""

    vehicles: int = 0
    offered: int = 0
    queued: int = 0  # of those offered, new to the queues
    superseded: int = 0
    forgotten: int = 0  # ended entries pruned from the queues
    rebuild_needed: bool = False  # the queues are not loaded, and nothing was done
    spoilt: int = 0  # vehicles that got nothing, because a Redis key of theirs has another type
    spoilt_named: tuple[str, ...] = ()  # some of them, each with that key
    spoilt_triggers: int = 0  # triggers whose Redis key has another type; dispatchers read them from the lake
    spoilt_triggers_named: tuple[str, ...] = ()  # some of these keys
    compacted: int = 0  # compacted queues with something new in the lake
    compacted_queued: int = 0  # their messages that became pending

    @property
    def problem(self) -> str | None:
        """What is missing from the queues, and the remedy; None if nothing is."""
        if self.rebuild_needed:
            return REBUILD_NEEDED
        if not self.spoilt:
            return None
        named = "; ".join(self.spoilt_named) + ("; …" if self.spoilt > len(self.spoilt_named) else "")
        remedy = "delete these keys, then run `manifold rebuild`"
        return (
            f"vehicles under whose keys in Redis is something else got nothing ({self.spoilt}; all others did): {named}: {remedy}"
        )

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


@emits_lineage("populate", reads=READ, writes=["queues"])
def populate(spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime, everything: bool = False) -> Populated:
    """Offer pending entries to the queues, and prune the ended ones that they remember.

    Args:
        spark: a session over the catalog.
        catalog: the same catalog in PyIceberg.
        settings: the address of Redis, and the queue policy.
        now: the instant, timezone-aware, from which the retention counts back.
        everything: offer all pending entries, and mark the queues as loaded; otherwise offer what was not enqueued directly
            since the last populate. Without `everything`, queues that are not loaded stay as they are, and the result says so.

    Raises:
        Retryable: another process is populating, or Redis lost the lock; nothing is lost, run it again.
        redis.RedisError: Redis is unavailable or refuses.
    """
    redis = connect(settings.redis)
    with populate_lock(redis) as lock:
        if not everything and not Loader(redis, Policy.of(settings)).is_loaded():
            log.warning(REBUILD_NEEDED)  # entries queued now would precede older ones that are missing
            return Populated(rebuild_needed=True)
        taken, taken_ecq = (newest_seqs(catalog, stream=s) if everything else {} for s in (Stream.TRIGGER, Stream.ECQ))
        if everything:
            load_brakes(settings, redis, now)
            # a segment is committed before its rows are in every table: those in `taken` must be there
            finish_committed_runs(catalog)
        ids, ended = unpopulated(redis, catalog, everything=everything)
        waiting, gone = _pending_and_ended(spark, settings, ids, ended, now, everything=everything)
        compacted = ecq.load_queues(spark, catalog, settings, redis, now=now, everything=everything)
        loaded, triggers = _load(waiting, settings, now) if ids.rows else (LoadResult(), [])
        lock.check()
        # Only now: an entry offered above may have ended in between, and only the queues' memory prevents a second delivery.
        forgotten, kept = forget_ended(gone, settings) if ended.rows else (0, 0)
        lock.check()
        if not kept:  # otherwise the next populate reads the same outcomes again
            redis.set(keys.DONE_PRUNED, ended.end)
        settled = newest_before(
            catalog, IDS, now - PERSISTED_AFTER
        )  # Redis may lose its last second, which must then be offered again
        if settled is not None:
            redis.set(keys.POPULATED, settled)
        ecq_news.remember(redis, catalog, settled=now - PERSISTED_AFTER)
        if everything:
            Loader(redis, Policy.of(settings)).mark_loaded(_unix_ms(now), taken, taken_ecq)
    spoilt_queues = [ecq_queue(client_id) for client_id in compacted.spoilt]
    numbers = (loaded.owners, loaded.offered, loaded.queued, len(loaded.superseded), forgotten)
    loader = Loader(redis, Policy.of(settings))
    named = tuple(f"{owner}: {loader.corrupt_key(owner)}" for owner in sorted(loaded.spoilt)[:MAX_NAMED])
    named += tuple(f"{queue}: a key of its queue holds another type" for queue in sorted(spoilt_queues)[:MAX_NAMED])
    words = (len(loaded.spoilt) + len(spoilt_queues), named, len(triggers), tuple(triggers[:MAX_NAMED]))
    result = Populated(*numbers, False, *words, compacted.owners, compacted.queued)
    if triggers:
        log.warning("corrupt trigger keys in redis", keys=result.spoilt_triggers_named, remedy="delete them")
    if result.problem:
        log.error("queues populated, except those with corrupt keys", everything=everything, **asdict(result))
    else:
        log.info("queues populated", everything=everything, **asdict(result))
    return result


def _pending_and_ended(
    spark: SparkSession, settings: Settings, ids: SnapshotRange, ended: SnapshotRange, now: datetime, *, everything: bool
) -> tuple[DataFrame, DataFrame]:
    """The pending entries, and (vin, seq) of those that ended recently."""
    since = now - timedelta(days=settings.retention_days)
    entries = candidates(_rows(spark, settings, ids), since=since, everything=everything)
    outcomes = spark.read.option("versionAsOf", ended.end).table(f"{settings.catalog_name}.{OUTCOMES.identifier}")
    parts = max(parallelism(spark), -(-ids.rows // ROWS_PER_PARTITION))
    waiting = pending(
        entries, outcomes.where(sf.col("accepted_at") >= sf.lit(since)), parts=parts, few=ids.rows <= MAX_BROADCAST_ROWS
    )
    gone = _rows(spark, settings, ended)
    if ended.start is None:  # a new Redis remembers little; an entry that it does not forget costs a few bytes
        gone = gone.where(sf.col("ended_at") >= sf.lit(now - ENDED_LOOKBACK))
    return waiting, gone.select("vin", "seq")


def _rows(spark: SparkSession, settings: Settings, added: SnapshotRange) -> DataFrame:
    name = f"{settings.catalog_name}.{added.table.identifier}"
    if added.start is None:
        return spark.read.option("versionAsOf", added.end).table(name)
    return spark.read.option("start-snapshot-id", added.start).option("end-snapshot-id", added.end).table(name)


def _load(waiting: DataFrame, settings: Settings, now: datetime) -> tuple[LoadResult, list[str]]:
    """Load the entries; return the counts, and the keys of triggers that have another type."""
    load = loading(settings.redis, Policy.of(settings), _unix_ms(now))
    done, words = counted(waiting, load, ("owners", "offered", "queued", "superseded"))
    result = LoadResult(done["owners"], done["offered"], done["queued"], [("", 0)] * done["superseded"], words[SPOILT])
    return result, sorted(set(words[TRIGGERS]))  # every worker with entries of a trigger stores it


def _unix_ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)
