"""Makes the rows of the tables from parsed messages: DataFrame in, DataFrame out. No session, no clock, no name of a table.

The input has the columns of `manifold.archive.parsing`.
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from manifold.archive.parsing import OTHER_BYTES
from manifold.contracts.seq import EPOCH_MS, TIME_SHIFT


def instant_of(seq: str) -> Column:
    """The instant at which the seq in this column was given."""
    return sf.timestamp_millis(sf.shiftright(sf.col(seq), TIME_SHIFT) + sf.lit(EPOCH_MS))


def ids_rows(triggers: DataFrame) -> DataFrame:
    """One row for each VIN of each accepted trigger."""
    accepted = triggers.where("reason is null")
    return accepted.select(
        sf.explode("vins").alias("vin"), instant_of("seq").alias("ts"), "request_id", "seq", "data_id", "applied"
    )


def classify(messages: DataFrame, known: DataFrame) -> DataFrame:
    """Accepted data messages (seq, received_at, data_id, sha1) against what is `known` (data_id, sha1, stored_at; each once).

    Adds `stored_sha1` and `stored_at`, the payload that the data_id stands for: the known one, else that of the lowest seq;
    `is_new`, true for the one message whose payload is to be stored; and `is_conflict`, true where the message has other bytes.
    """
    by_seq = Window.partitionBy("data_id").orderBy("seq")
    stored = known.select("data_id", sf.struct("sha1", "stored_at").alias("known"))
    joined = messages.join(stored, "data_id", "left").withColumn("place", sf.row_number().over(by_seq))
    first = sf.first(sf.struct("sha1", sf.col("received_at").alias("stored_at"))).over(by_seq)
    found = joined.withColumn("stored", sf.coalesce("known", first))
    told = found.withColumns({"stored_sha1": sf.col("stored.sha1"), "stored_at": sf.col("stored.stored_at")})
    is_new, is_conflict = sf.col("known").isNull() & (sf.col("place") == 1), sf.col("sha1") != sf.col("stored_sha1")
    return told.withColumns({"is_new": is_new, "is_conflict": is_conflict}).drop("known", "stored", "place")


def data_rows(messages: DataFrame, judgement: DataFrame) -> DataFrame:
    """The payloads to be stored. `messages` has the payloads, `judgement` is what `classify` made of them."""
    new = sf.broadcast(judgement.where("is_new").select("seq"))  # few and small beside the payloads
    return messages.join(new, "seq", "left_semi").select(
        "data_id",
        "payload",
        "sha1",
        sf.octet_length("payload").cast("bigint").alias("size_bytes"),
        "seq",
        sf.col("received_at").alias("first_seen_at"),
    )


def sightings_of(judgement: DataFrame) -> DataFrame:
    """The run's row of each data_id that accepted messages have: each message is one sighting."""
    at = sf.col("received_at")
    seen = (at.alias("first_seen_at"), at.alias("last_seen_at"), sf.lit(1).cast("bigint").alias("times_seen"))
    return folded(judgement.where("not is_conflict").select("data_id", *seen, sf.col("stored_sha1").alias("sha1"), "stored_at"))


def folded(sightings: DataFrame) -> DataFrame:
    """The rows of `sdv_fanout_meta` as one for each data_id, as `manifold.lake.sightings` folds them."""
    of_data = sightings.groupBy("data_id").agg(
        sf.min("first_seen_at").alias("first_seen_at"),
        sf.max("last_seen_at").alias("last_seen_at"),
        sf.sum("times_seen").alias("times_seen"),
        sf.min(sf.struct("stored_at", "sha1")).alias("stored"),
    )
    return of_data.select("data_id", "first_seen_at", "last_seen_at", "times_seen", "stored.sha1", "stored.stored_at")


def outcome_rows(outcomes: DataFrame) -> DataFrame:
    """One row for each entry that ended: what the first message about it says."""
    accepted = outcomes.where("reason is null")
    first = accepted.groupBy("vin", "entry_seq").agg(
        sf.min_by(sf.struct("outcome", "dispatched_ms", "ended_ms", "attempts", "said"), "seq").alias("o")
    )
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
    )


def not_in(rows: DataFrame, known: DataFrame, keys: list[str]) -> DataFrame:
    """Rows whose keys are not among those of `known`, found without sorting either side."""
    return rows.join(known.select(*keys).hint("shuffle_hash"), keys, "left_anti")


def once(refused: DataFrame, keys: Sequence[str]) -> DataFrame:
    """One of the refused rows of each key: copies of a file bring the same ones, and nobody has looked whether they overlap."""
    place = sf.row_number().over(Window.partitionBy(*keys).orderBy("topic"))
    return refused.withColumn("place", place).where("place = 1").drop("place")


def refused_rows(parsed: DataFrame, stream: str) -> DataFrame:
    """The quarantine rows of messages that a parser has refused."""
    refused = parsed.where("reason is not null")
    digest = sf.col("digest") if "digest" in parsed.columns else no_digest()
    return refused.select(
        "seq", "received_at", sf.lit(stream).alias("stream"), "topic", "reason", sf.col("message").alias("payload"), digest
    )


def no_digest() -> Column:
    """The column of messages without repeats."""
    return sf.lit(None).cast("string").alias("digest")


def conflict_rows(messages: DataFrame, conflicts: DataFrame, stream: str) -> DataFrame:
    """The quarantine rows of data that came with other bytes than its data_id stands for.

    `messages` has the payloads, `conflicts` the few (seq, stored_sha1) of those that differ. Where the data came inside
    a trigger, its `message` is that trigger.
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
    """The rows of every frame; all have the same columns."""
    return reduce(DataFrame.unionByName, frames)
