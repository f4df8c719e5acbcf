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

    The stored payload of a data_id is the known payload; if there is none, the payload of the message with the lowest seq.

    Returns `messages` with four more columns: `stored_sha1` and `stored_at` describe the stored payload, `is_new` is true for the
    one message whose payload is to be stored, and `is_conflict` is true if the message's bytes differ from the stored payload.
    """
    by_seq = Window.partitionBy("data_id").orderBy("seq")
    known_payloads = known.select("data_id", sf.struct("sha1", "stored_at").alias("known"))
    joined = messages.join(known_payloads, "data_id", "left").withColumn("occurrence", sf.row_number().over(by_seq))
    first_payload = sf.first(sf.struct("sha1", sf.col("received_at").alias("stored_at"))).over(by_seq)
    with_struct = joined.withColumn("stored", sf.coalesce("known", first_payload))
    with_stored = with_struct.withColumns({"stored_sha1": sf.col("stored.sha1"), "stored_at": sf.col("stored.stored_at")})
    is_new = sf.col("known").isNull() & (sf.col("occurrence") == 1)
    is_conflict = sf.col("sha1") != sf.col("stored_sha1")
    classified = with_stored.withColumns({"is_new": is_new, "is_conflict": is_conflict})
    return classified.drop("known", "stored", "occurrence")


def data_rows(messages: DataFrame, classified: DataFrame) -> DataFrame:
    """The rows of `sdv_fanout_data` to add. `messages` has the payloads; `classified` is the result of `classify`."""
    new = sf.broadcast(classified.where("is_new").select("seq"))  # the seqs are small compared with the payloads
    return messages.join(new, "seq", "left_semi").select(
        "data_id",
        "payload",
        "sha1",
        sf.octet_length("payload").cast("bigint").alias("size_bytes"),
        "seq",
        sf.col("received_at").alias("first_seen_at"),
    )


def sightings_of(classified: DataFrame) -> DataFrame:
    """One row of `sdv_fanout_meta` per data_id, from all messages without a conflict; each message is one sighting.

    `classified` is the result of `classify`.
    """
    received_at = sf.col("received_at")
    sightings = classified.where("not is_conflict").select(
        "data_id",
        received_at.alias("first_seen_at"),
        received_at.alias("last_seen_at"),
        sf.lit(1).cast("bigint").alias("times_seen"),
        sf.col("stored_sha1").alias("sha1"),
        "stored_at",
    )
    return folded(sightings)


def folded(sightings: DataFrame) -> DataFrame:
    """Fold the rows of `sdv_fanout_meta` into one row per data_id, by the rules in `manifold.lake.sightings`."""
    aggregates = {"min": sf.min, "max": sf.max, "sum": sf.sum}
    aggregated = [aggregates[fold](name).alias(name) for name, fold in FOLDS.items() if fold in aggregates]
    grouped = sightings.groupBy("data_id").agg(*aggregated, sf.min(sf.struct(*BY_PAYLOAD)).alias("stored"))
    columns = [name if fold in aggregates else f"stored.{name}" for name, fold in FOLDS.items()]
    return grouped.select("data_id", *columns)


def outcome_rows(outcomes: DataFrame) -> DataFrame:
    """One row per ended entry, from the message with the lowest seq about it.

    An entry that was delivered after its withdrawal has a second row for the delivery.
    """
    accepted = outcomes.where("reason is null")
    end = sf.struct("outcome", "dispatched_ms", "ended_ms", "attempts", "said", "seq")
    delivery_seq = sf.when(sf.col("outcome") == "delivered", sf.col("seq"))
    ends = accepted.groupBy("vin", "entry_seq").agg(
        sf.min_by(end, "seq").alias("first_end"), sf.min_by(end, delivery_seq).alias("delivery")
    )
    late_delivery = sf.when(sf.col("first_end.outcome") == Outcome.WITHDRAWN.value, sf.col("delivery"))
    row_ends = sf.explode(sf.array_compact(sf.array("first_end", late_delivery))).alias("o")
    rows = ends.select("vin", "entry_seq", row_ends)
    acknowledged = sf.when(sf.col("o.outcome") == "delivered", sf.timestamp_millis("o.ended_ms"))
    return rows.select(
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
    """The rows of `sdv_fanout_outcomes` for entries (vin, seq) that garbage collection has expired at instant `at`.

    They have no seq of a recorded message, because no recorder has received these outcomes.
    """
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


def rows_not_in(rows: DataFrame, known: DataFrame, keys: list[str]) -> DataFrame:
    """The rows whose keys are not in `known`. The hash join avoids sorting either side."""
    return rows.join(known.select(*keys).hint("shuffle_hash"), keys, "left_anti")


def new_outcomes(rows: DataFrame, known: DataFrame) -> DataFrame:
    """The outcomes of entries that are not in `known` (vin, seq, outcome).

    The outcome `delivered` is also new if `known` has the entry only as withdrawn.
    """
    renamed = [sf.col(name).alias(f"known_{name}") for name in ("vin", "seq", "outcome")]
    is_same_entry = (sf.col("vin") == sf.col("known_vin")) & (sf.col("seq") == sf.col("known_seq"))
    is_late_delivery = (sf.col("outcome") == Outcome.DELIVERED.value) & (sf.col("known_outcome") == Outcome.WITHDRAWN.value)
    return rows.join(known.select(*renamed).hint("shuffle_hash"), is_same_entry & ~is_late_delivery, "left_anti")


def one_row_per_key(refused: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Of refused rows with the same key, keep the row with the first topic in alphabetical order.

    Keys can repeat because two copies of a file have the same refused messages, and the plan does not skip refused messages.
    """
    occurrence = sf.row_number().over(Window.partitionBy(*keys).orderBy("topic"))
    return refused.withColumn("occurrence", occurrence).where("occurrence = 1").drop("occurrence")


def refused_rows(parsed: DataFrame, stream: str) -> DataFrame:
    """The quarantine rows of messages that a parser refused."""
    refused = parsed.where("reason is not null")
    digest = sf.col("digest") if "digest" in parsed.columns else no_digest()
    return refused.select(
        "seq", "received_at", sf.lit(stream).alias("stream"), "topic", "reason", sf.col("message").alias("payload"), digest
    )


def no_digest() -> Column:
    """A null in the column `digest`, for messages that are not deduplicated by their digest."""
    return sf.lit(None).cast("string").alias("digest")


def conflict_rows(messages: DataFrame, conflicts: DataFrame, stream: str) -> DataFrame:
    """The quarantine rows of data messages whose bytes differ from the stored payload of their data_id.

    `messages` has all payloads, and `conflicts` has (seq, stored_sha1) of the few messages that differ. The quarantined bytes are
    the column `message` if it is not null, else the payload: for data inside a trigger, `message` is the whole trigger.
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


def union_of(frames: list[DataFrame]) -> DataFrame:
    """The union of frames with the same columns."""
    return reduce(DataFrame.unionByName, frames)
