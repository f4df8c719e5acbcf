"""Builds the rows of the tables from parsed messages: DataFrame in, DataFrame out.

The input has the columns of `manifold.archive.parsing`. No session, clock or table name is needed.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from manifold.archive.parsing import OTHER_BYTES
from manifold.contracts.outcomes import Outcome
from manifold.contracts.seq import EPOCH_MS, TIME_SHIFT
from manifold.lake.sightings import BY_PAYLOAD, FOLDS


def instant_of(seq: str) -> Column:
    """The instant at which the seq in this column was assigned."""
    return sf.timestamp_millis(sf.shiftright(sf.col(seq), TIME_SHIFT) + sf.lit(EPOCH_MS))


def ids_rows(triggers: DataFrame) -> DataFrame:
    """One row per VIN of each accepted trigger."""
    accepted = triggers.where("reason is null")
    return accepted.select(
        sf.explode("vins").alias("vin"),
        instant_of("seq").alias("ts"),
        "request_id",
        "seq",
        "data_id",
        "applied",
        sf.when(sf.col("step").isNotNull(), sf.col("request_id")).alias("campaign"),
        "wave",
        "step",
        sf.timestamp_millis("until_ms").alias("until"),
        sf.col("vins_are_iso_3779").alias("vin_is_iso_3779"),
    )


def classify(messages: DataFrame, known: DataFrame) -> DataFrame:
    """Compare accepted data messages (seq, received_at, data_id, sha1) with the `known` payloads (data_id, sha1, stored_at).

    Adds `stored_sha1` and `stored_at` of the data_id's payload: the known one, else that of the lowest seq; `is_new`, true for
    the one message whose payload is to be stored; and `is_conflict`, true where the message has other bytes.
    """
    by_seq = Window.partitionBy("data_id").orderBy("seq")
    stored = known.select("data_id", sf.struct("sha1", "stored_at").alias("known"))
    joined = messages.join(stored, "data_id", "left").withColumn("place", sf.row_number().over(by_seq))
    first = sf.first(sf.struct("sha1", sf.col("received_at").alias("stored_at"))).over(by_seq)
    found = joined.withColumn("stored", sf.coalesce("known", first))
    with_stored = found.withColumns({"stored_sha1": sf.col("stored.sha1"), "stored_at": sf.col("stored.stored_at")})
    is_new, is_conflict = sf.col("known").isNull() & (sf.col("place") == 1), sf.col("sha1") != sf.col("stored_sha1")
    return with_stored.withColumns({"is_new": is_new, "is_conflict": is_conflict}).drop("known", "stored", "place")


def data_rows(messages: DataFrame, judgement: DataFrame) -> DataFrame:
    """The payloads to store. `messages` has the payloads, `judgement` is the result of `classify`."""
    new = sf.broadcast(judgement.where("is_new").select("seq"))  # few, and small compared with payloads
    return messages.join(new, "seq", "left_semi").select(
        "data_id",
        "payload",
        "sha1",
        sf.octet_length("payload").cast("bigint").alias("size_bytes"),
        "seq",
        sf.col("received_at").alias("first_seen_at"),
    )


def sightings_of(judgement: DataFrame) -> DataFrame:
    """The run's row of `sdv_fanout_meta` for each data_id of accepted messages; each message is one sighting."""
    at = sf.col("received_at")
    seen = (at.alias("first_seen_at"), at.alias("last_seen_at"), sf.lit(1).cast("bigint").alias("times_seen"))
    return folded(judgement.where("not is_conflict").select("data_id", *seen, sf.col("stored_sha1").alias("sha1"), "stored_at"))


def folded(sightings: DataFrame) -> DataFrame:
    """Fold the rows of `sdv_fanout_meta` into one for each data_id, by the rules in `manifold.lake.sightings`."""
    aggregates = {"min": sf.min, "max": sf.max, "sum": sf.sum}
    folds = [aggregates[fold](name).alias(name) for name, fold in FOLDS.items() if fold in aggregates]
    of_data = sightings.groupBy("data_id").agg(*folds, sf.min(sf.struct(*BY_PAYLOAD)).alias("stored"))
    return of_data.select("data_id", *(name if fold in aggregates else f"stored.{name}" for name, fold in FOLDS.items()))


def outcome_rows(outcomes: DataFrame) -> DataFrame:
    """One row per ended entry, from the first message about it; a second for one that was delivered after its withdrawal."""
    accepted = outcomes.where("reason is null")
    end, delivered = (
        sf.struct("outcome", "dispatched_ms", "ended_ms", "attempts", "said", "seq"),
        sf.col("outcome") == "delivered",
    )
    ends = accepted.groupBy("vin", "entry_seq").agg(
        sf.min_by(end, "seq").alias("o"), sf.min_by(end, sf.when(delivered, sf.col("seq"))).alias("late")
    )
    late = sf.when(sf.col("o.outcome") == Outcome.WITHDRAWN.value, sf.col("late"))
    first = ends.select("vin", "entry_seq", sf.explode(sf.array_compact(sf.array("o", late))).alias("o"))
    acknowledged = sf.when(sf.col("o.outcome") == "delivered", sf.timestamp_millis("o.ended_ms"))
    return first.select(
        "vin",
        sf.col("entry_seq").alias("seq"),
        sf.col("o.outcome").alias("outcome"),
        instant_of("entry_seq").alias("accepted_at"),
        sf.timestamp_millis("o.dispatched_ms").alias("dispatched_at"),
        acknowledged.alias("acknowledged_at"),
        sf.timestamp_millis("o.ended_ms").alias("ended_at"),
        sf.col("o.attempts").alias("attempts"),
        sf.col("o.said").alias("reason"),
        sf.col("o.seq").alias("recorded_seq"),
    )


def expired_rows(ended: DataFrame, *, at: datetime, reason: str) -> DataFrame:
    """The outcomes of entries (vin, seq) that the collector has ended; no recorder has seen them."""
    return ended.select(
        "vin",
        "seq",
        sf.lit(Outcome.EXPIRED.value).alias("outcome"),
        instant_of("seq").alias("accepted_at"),
        sf.lit(None).cast("timestamp").alias("dispatched_at"),
        sf.lit(None).cast("timestamp").alias("acknowledged_at"),
        sf.lit(at).alias("ended_at"),
        sf.lit(None).cast("int").alias("attempts"),
        sf.lit(reason).alias("reason"),
        sf.lit(None).cast("bigint").alias("recorded_seq"),
    )


def not_in(rows: DataFrame, known: DataFrame, keys: list[str]) -> DataFrame:
    """Rows whose keys are not in `known`; a hash join, so that neither side is sorted."""
    return rows.join(known.select(*keys).hint("shuffle_hash"), keys, "left_anti")


def new_outcomes(rows: DataFrame, known: DataFrame) -> DataFrame:
    """Outcomes of entries that are not in `known` (vin, seq, outcome).

    `delivered` is new, too, where an entry is only known as withdrawn.
    """
    theirs = known.select(*(sf.col(name).alias(f"known_{name}") for name in ("vin", "seq", "outcome"))).hint("shuffle_hash")
    same = (sf.col("vin") == sf.col("known_vin")) & (sf.col("seq") == sf.col("known_seq"))
    late = (sf.col("outcome") == Outcome.DELIVERED.value) & (sf.col("known_outcome") == Outcome.WITHDRAWN.value)
    return rows.join(theirs, same & ~late, "left_anti")


def once(refused: DataFrame, keys: Sequence[str]) -> DataFrame:
    """One refused row per key: copies of a file have the same ones, and refused messages are not checked for overlaps."""
    place = sf.row_number().over(Window.partitionBy(*keys).orderBy("topic"))
    return refused.withColumn("place", place).where("place = 1").drop("place")


def refused_rows(parsed: DataFrame, stream: str) -> DataFrame:
    """The quarantine rows of messages that a parser refused."""
    refused = parsed.where("reason is not null")
    digest = sf.col("digest") if "digest" in parsed.columns else no_digest()
    return refused.select(
        "seq", "received_at", sf.lit(stream).alias("stream"), "topic", "reason", sf.col("message").alias("payload"), digest
    )


def no_digest() -> Column:
    """A null digest, for messages that are not deduplicated by it."""
    return sf.lit(None).cast("string").alias("digest")


def conflict_rows(messages: DataFrame, conflicts: DataFrame, stream: str) -> DataFrame:
    """The quarantine rows of data whose bytes differ from the stored payload of their data_id.

    `messages` has the payloads, `conflicts` the few (seq, stored_sha1) that differ. For data inside a trigger, `message` is
    that trigger.
    """
    reason = sf.format_string(OTHER_BYTES, "data_id", "stored_sha1")
    return messages.join(sf.broadcast(conflicts), "seq").select(
        "seq",
        "received_at",
        sf.lit(stream).alias("stream"),
        "topic",
        reason.alias("reason"),
        sf.coalesce("message", "payload").alias("payload"),
        no_digest(),
    )


def all_of(frames: list[DataFrame]) -> DataFrame:
    """The union of frames with the same columns."""
    return reduce(DataFrame.unionByName, frames)
