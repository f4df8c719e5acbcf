"""Writes payloads and their index to the branches of a run: `sdv_fanout_data` and `sdv_fanout_meta`.

Payloads come from the stream `data`, and from triggers with inline data.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from manifold.archive import parsing
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import DATA, META
from manifold.lake.sightings import BY_PAYLOAD, FOLDS
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.planning import Plan
from pipelines.ingest.reading import read_and_parse, source_of
from pipelines.ingest.transforms import conflict_rows, refused_rows, union_of

MAX_NAMED_DATA_IDS = 1000  # data ids that a filter lists one by one


def write_payloads(attempt: Attempt, plan: Plan, refused: list[DataFrame]) -> list[int]:
    """Write payloads and their index; return the seqs of triggers whose inline data conflicts with the stored payload.

    The rows of refused and conflicting messages are appended to `refused`.
    """
    frames = _parsed_messages(attempt, plan)
    if not frames:
        return []
    without_bytes = [
        frame.drop("payload", "message").withColumn("stream", sf.lit(stream.value)) for stream, frame in frames.items()
    ]
    messages = union_of(without_bytes).persist()
    accepted = messages.where("reason is null")
    classified = classify(accepted, _known_data(attempt, accepted)).persist()
    try:
        refused_count = messages.where("reason is not null").count()
        counts = classified.agg(
            sf.count_if("is_new").alias("new"), sf.count_if("is_conflict").alias("conflicts"), sf.count("*").alias("all")
        ).first()
        assert counts is not None  # an aggregation has one row
        if refused_count:  # all of them are of the data stream, because inline data is that of accepted triggers
            refused.append(refused_rows(frames[Stream.DATA], Stream.DATA))
        if counts["new"]:
            rows = union_of([data_rows(frame, classified) for frame in frames.values()])
            attempt.append(DATA, rows)
        if counts["all"] > counts["conflicts"]:
            attempt.append(META, sightings_of(classified))
        if not counts["conflicts"]:
            return []
        conflicts = classified.where("is_conflict").select("seq", "stream", "stored_sha1").collect()
    finally:
        messages.unpersist()
        classified.unpersist()
    stored = [(row["seq"], row["stored_sha1"]) for row in conflicts]
    conflict_frame = attempt.spark.createDataFrame(stored, "seq bigint, stored_sha1 string")
    refused += [conflict_rows(frame, conflict_frame, stream) for stream, frame in frames.items()]
    return [row["seq"] for row in conflicts if row["stream"] == Stream.TRIGGER]


def _parsed_messages(attempt: Attempt, plan: Plan) -> dict[Stream, DataFrame]:
    """The messages that may carry a payload, parsed, with their payloads, by stream. A stream without segments is left out."""
    frames: dict[Stream, DataFrame] = {}
    for stream, parser in {Stream.DATA: parsing.data, Stream.TRIGGER: parsing.inline_data}.items():
        if plan.segments_of(stream):
            source = source_of(attempt, plan, stream)
            with_unreadable = stream is Stream.DATA  # `write_triggers` refuses unreadable files of triggers
            frames[stream] = read_and_parse(source, attempt.spark, parser, parsing.DATA, with_unreadable=with_unreadable)
    return frames


def _known_data(attempt: Attempt, accepted: DataFrame) -> DataFrame:
    """(data_id, sha1, stored_at) of the payloads in the lake.

    If the run has at most `MAX_NAMED_DATA_IDS` data ids, only their payloads are returned.
    """
    known = folded(attempt.main(META)).select("data_id", "sha1", "stored_at")
    rows = accepted.select("data_id").distinct().limit(MAX_NAMED_DATA_IDS + 1).collect()
    if len(rows) > MAX_NAMED_DATA_IDS:
        return known
    return known.where(sf.col("data_id").isin([row["data_id"] for row in rows]))


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
    """Aggregate the rows of `sdv_fanout_meta` to one row per data_id, by the rules in `manifold.lake.sightings`.

    The columns with the rule `first` describe the payload that was stored first. All other columns are a minimum, maximum or sum.
    """
    aggregates = {"min": sf.min, "max": sf.max, "sum": sf.sum}
    aggregated = [sf.min(sf.struct(*BY_PAYLOAD)).alias("stored")]  # the least struct is that of the earliest instant
    columns = ["data_id"]
    for name, rule in FOLDS.items():
        if rule in aggregates:
            aggregated.append(aggregates[rule](name).alias(name))
            columns.append(name)
        else:
            columns.append(f"stored.{name}")
    return sightings.groupBy("data_id").agg(*aggregated).select(*columns)
