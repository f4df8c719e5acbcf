"""What the writers of several streams share, and the rows of quarantine: DataFrame in, DataFrame out.

The input has the columns of `manifold.archive.parsing`. No session, clock or table name is needed.
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from manifold.archive.parsing import OTHER_BYTES
from manifold.contracts.seq import EPOCH_MS, TIME_SHIFT


def instant_of(seq: str) -> Column:
    """The instant at which the seq in this column was assigned."""
    return sf.timestamp_millis(sf.shiftright(sf.col(seq), TIME_SHIFT) + sf.lit(EPOCH_MS))


def union_of(frames: list[DataFrame]) -> DataFrame:
    """The union of frames with the same columns."""
    return reduce(DataFrame.unionByName, frames)


def refused_rows(parsed: DataFrame, stream: str) -> DataFrame:
    """The quarantine rows of messages that a parser refused."""
    refused = parsed.where("reason is not null")
    digest = sf.col("digest") if "digest" in parsed.columns else no_digest()
    return refused.select(
        "seq", "received_at", sf.lit(stream).alias("stream"), "topic", "reason", sf.col("message").alias("payload"), digest
    )


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


def one_row_per_key(refused: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Of refused rows with the same key, keep the row with the first topic in alphabetical order.

    The same message can be refused twice, because the plan compares neither segments of the outcome stream nor a replay with its
    original.
    """
    occurrence = sf.row_number().over(Window.partitionBy(*keys).orderBy("topic"))
    return refused.withColumn("occurrence", occurrence).where("occurrence = 1").drop("occurrence")


def no_digest() -> Column:
    """A null in the column `digest`, for messages that are not deduplicated by their digest."""
    return sf.lit(None).cast("string").alias("digest")
