"""Populates the queues with pending entries of the lake, and lets them forget ended ones: `python -m pipelines populate`.

Safe beside running dispatchers, and safe to repeat: an entry that the queues have, or had until lately, is not queued again.
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
from pipelines.ingest.publish import finish
from pipelines.lineage import emits_lineage
from pipelines.populate import ecq, ecq_news
from pipelines.populate.ids_news import unpopulated
from pipelines.populate.lock import populate_lock
from pipelines.populate.pending import candidates, pending
from pipelines.populate.snapshot_range import SnapshotRange, newest_before, newest_seqs
from pipelines.populate.worker_errors import SPOILT, TRIGGERS
from pipelines.populate.workers import counted, forget_ended, loading
from pipelines.spark.parallelism import parallelism

MAX_BROADCAST_ROWS = 200_000  # entries whose keys are sent to where the outcomes are, rather than the outcomes shuffled
ROWS_PER_PARTITION = 400_000  # entries of one partition: a worker groups them in memory
MAX_NAMED = 20  # vehicles, where something is to be said of many
REBUILD_NEEDED = "rebuild needed: Redis does not hold what is pending; trigger rebuild_queues, or run `manifold rebuild`"
ENDED_LOOKBACK = timedelta(days=2)  # how far back the ended entries of an unknown Redis are looked up
PERSISTED_AFTER = timedelta(minutes=10)  # what was loaded so long ago is in Redis's file for good

READ = (DATA, META, IDS, OUTCOMES, ECQ_PAYLOAD, ECQ_INDEX, ECQ_STATE)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Populated:
    """What became of what was pending."""

    vehicles: int = 0
    offered: int = 0
    queued: int = 0  # of them, new to the queues
    superseded: int = 0
    forgotten: int = 0  # ended entries that the queues need not remember any more
    rebuild_needed: bool = False  # the queues are not loaded: nothing was done
    spoilt: int = 0  # vehicles that got nothing, because a key of theirs in Redis holds another type
    spoilt_named: tuple[str, ...] = ()  # some of them, with that key
    spoilt_triggers: int = 0  # triggers whose key in Redis holds another type: dispatchers find in the lake what they say
    spoilt_triggers_named: tuple[str, ...] = ()  # some of these keys
    compacted: int = 0  # compacted queues about which the lake knew something new
    compacted_queued: int = 0  # their messages that are pending by it

    @property
    def problem(self) -> str | None:
        """What is not in the queues, and the remedy; None where all is."""
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
    """Offer what is pending to the queues, and prune what they remember of ended entries.

    Args:
        spark: a session over the catalog.
        catalog: the same catalog in PyIceberg.
        settings: where Redis is, and how entries wait.
        now: the instant, timezone-aware, from which the retention counts back.
        everything: all that is pending, and mark the queues as loaded; else what was not enqueued directly
            since the last time, if the queues are loaded. If they are not, nothing is done, and the result says so.

    Raises:
        Retryable: another process is at it, or Redis lost the lock; nothing is lost, do it again.
        redis.RedisError: Redis is away or refuses.
    """
    redis = connect(settings.redis)
    with populate_lock(redis) as lock:
        if not everything and not Loader(redis, Policy.of(settings)).is_loaded():
            log.warning(REBUILD_NEEDED)  # what came here now would be in front of what is older, and is not here
            return Populated(rebuild_needed=True)
        taken, taken_ecq = (newest_seqs(catalog, stream=s) if everything else {} for s in (Stream.TRIGGER, Stream.ECQ))
        if everything:
            finish(catalog)  # a segment counts before its rows are in every table: those that were seen to count have to be there
        ids, ended = unpopulated(redis, catalog, everything=everything)
        waiting, gone = _pending_and_ended(spark, settings, ids, ended, now, everything=everything)
        compacted = ecq.load_queues(spark, catalog, settings, redis, now=now, everything=everything)
        loaded, triggers = _load(waiting, settings, now) if ids.rows else (LoadResult(), [])
        lock.check()
        # Only now: an entry offered above may have ended in between, and only the queues' own memory knew.
        forgotten, kept = forget_ended(gone, settings) if ended.rows else (0, 0)
        lock.check()
        if not kept:  # else the next populate looks at the same outcomes again
            redis.set(keys.DONE_PRUNED, ended.end)
        settled = newest_before(
            catalog, IDS, now - PERSISTED_AFTER
        )  # Redis may lose its last second, and that must be offered again
        if settled is not None:
            redis.set(keys.POPULATED, settled)
        ecq_news.remember(redis, catalog, settled=now - PERSISTED_AFTER)
        if everything:
            Loader(redis, Policy.of(settings)).mark_loaded(_unix_ms(now), taken, taken_ecq)
    spoilt_queues = [ecq_queue(client_id) for client_id in compacted.spoilt]
    numbers = (loaded.owners, loaded.offered, loaded.queued, len(loaded.superseded), forgotten)
    loader = Loader(redis, Policy.of(settings))
    named = tuple(f"{owner}: {loader.spoilt_key(owner)}" for owner in sorted(loaded.spoilt)[:MAX_NAMED])
    named += tuple(f"{queue}: a key of its queue holds another type" for queue in sorted(spoilt_queues)[:MAX_NAMED])
    words = (len(loaded.spoilt) + len(spoilt_queues), named, len(triggers), tuple(triggers[:MAX_NAMED]))
    result = Populated(*numbers, False, *words, compacted.owners, compacted.queued)
    if triggers:
        log.warning("keys of triggers in Redis are spoilt: delete them", keys=result.spoilt_triggers_named)
    (log.error if result.problem else log.info)("queues are populated", everything=everything, **asdict(result))
    return result


def _pending_and_ended(
    spark: SparkSession, settings: Settings, ids: SnapshotRange, ended: SnapshotRange, now: datetime, *, everything: bool
) -> tuple[DataFrame, DataFrame]:
    """The pending entries, and (vin, seq) of those that ended lately."""
    since = now - timedelta(days=settings.retention_days)
    entries = candidates(_rows(spark, settings, ids), since=since, everything=everything)
    outcomes = spark.read.option("versionAsOf", ended.end).table(f"{settings.catalog_name}.{OUTCOMES.identifier}")
    parts = max(parallelism(spark), -(-ids.rows // ROWS_PER_PARTITION))
    waiting = pending(
        entries, outcomes.where(sf.col("accepted_at") >= sf.lit(since)), parts=parts, few=ids.rows <= MAX_BROADCAST_ROWS
    )
    gone = _rows(spark, settings, ended)
    if ended.start is None:  # a new Redis remembers little; not to forget an entry costs some bytes and nothing else
        gone = gone.where(sf.col("ended_at") >= sf.lit(now - ENDED_LOOKBACK))
    return waiting, gone.select("vin", "seq")


def _rows(spark: SparkSession, settings: Settings, added: SnapshotRange) -> DataFrame:
    name = f"{settings.catalog_name}.{added.table.identifier}"
    if added.start is None:
        return spark.read.option("versionAsOf", added.end).table(name)
    return spark.read.option("start-snapshot-id", added.start).option("end-snapshot-id", added.end).table(name)


def _load(waiting: DataFrame, settings: Settings, now: datetime) -> tuple[LoadResult, list[str]]:
    """What became of the entries, and the keys of triggers that are spoilt."""
    load = loading(settings.redis, Policy.of(settings), _unix_ms(now))
    done, words = counted(waiting, load, ("owners", "offered", "queued", "superseded"))
    result = LoadResult(done["owners"], done["offered"], done["queued"], [("", 0)] * done["superseded"], words[SPOILT])
    return result, sorted(set(words[TRIGGERS]))  # a trigger is stored by each worker that has entries of it


def _unix_ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)
