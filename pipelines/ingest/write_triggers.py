"""Writes the stream `trigger` to the branches of a run: `sdv_fanout_ids`."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sf

from manifold.archive import parsing
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import IDS
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.planning import Plan
from pipelines.ingest.reading import read_and_parse, source_of
from pipelines.ingest.transforms import instant_of, refused_rows


def write_triggers(attempt: Attempt, plan: Plan, refused: list[DataFrame], *, excluding: Sequence[int] = ()) -> bool:
    """Write the entries of accepted triggers, except those with seqs in `excluding`; return whether any has inline data.

    The rows of refused triggers are appended to `refused`.

    A worker returns a few rows per trigger, each with a list of VINs, which Spark explodes. To build a row per VIN in Python
    would take ten times the CPU time.
    """
    if not plan.segments_of(Stream.TRIGGER):
        return False
    source = source_of(attempt, plan, Stream.TRIGGER)
    counts = Observation()
    triggers = read_and_parse(source, attempt.spark, parsing.triggers, parsing.TRIGGERS)
    if excluding:
        triggers = triggers.where(~sf.col("seq").isin(list(excluding)))
    triggers = triggers.observe(counts, sf.count("reason").alias("refused"), sf.count_if("has_data").alias("with_data"))
    attempt.append(IDS, ids_rows(triggers))  # evaluates `triggers`, and thereby the counts
    if counts.get["refused"]:
        refused_triggers = read_and_parse(source, attempt.spark, parsing.refused_triggers, parsing.TRIGGERS)
        refused.append(refused_rows(refused_triggers, Stream.TRIGGER))
    return bool(counts.get["with_data"])


def ids_rows(triggers: DataFrame) -> DataFrame:
    """One row per VIN of each accepted trigger."""
    accepted = triggers.where("reason is null")
    is_release = sf.col("step").isNotNull()  # a release is a trigger of a campaign; its request_id names the campaign
    return accepted.select(
        sf.explode("vins").alias("vin"),
        instant_of("seq").alias("ts"),
        "request_id",
        "seq",
        "data_id",
        "applied",
        sf.when(is_release, sf.col("request_id")).alias("campaign"),
        "wave",
        "step",
        sf.timestamp_millis("until_ms").alias("until"),
        sf.col("vins_are_iso_3779").alias("vin_is_iso_3779"),
    )
