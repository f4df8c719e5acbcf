"""Writes orders to campaigns and vehicles' answers to the branches of a run."""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from manifold.archive import parsing
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import CAMPAIGN_ANSWERS, CAMPAIGN_EVENTS, CAMPAIGN_TARGETS, CAMPAIGNS, Table
from pipelines.ingest import transforms
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.reading import Source, parsed


def write_campaigns(run: Attempt, source: Source, base: Mapping[str, int], refused: list[DataFrame]) -> None:
    """Write the stream `campaign`; append its refused rows to `refused`."""
    orders = parsed(source, run.spark, parsing.campaigns, parsing.CAMPAIGNS).persist()
    try:
        counted = orders.agg(
            sf.count("campaign").alias("orders"),
            sf.count("plan").alias("plans"),
            sf.count_if(sf.size("targets") > 0).alias("lists"),
            sf.count("reason").alias("refused"),
        ).first()
        assert counted is not None  # an aggregation has one row
        accepted = orders.where("reason is null")
        if counted["orders"]:
            run.append(CAMPAIGN_EVENTS, rows_of(CAMPAIGN_EVENTS, accepted), base[CAMPAIGN_EVENTS.name])
        if counted["plans"]:
            run.append(CAMPAIGNS, rows_of(CAMPAIGNS, accepted.where("plan is not null")), base[CAMPAIGNS.name])
        if counted["lists"]:
            listed = accepted.select("campaign", "seq", sf.inline("targets"))
            run.append(CAMPAIGN_TARGETS, rows_of(CAMPAIGN_TARGETS, listed), base[CAMPAIGN_TARGETS.name])
        if counted["refused"]:
            bad = transforms.refused_rows(parsed(source, run.spark, parsing.campaigns, parsing.CAMPAIGNS), Stream.CAMPAIGN)
            refused.append(bad)
    finally:
        orders.unpersist()


def write_answers(run: Attempt, source: Source, base: Mapping[str, int], refused: list[DataFrame]) -> None:
    """Write the stream `answer`; append its refused rows to `refused`."""
    answers = parsed(source, run.spark, parsing.answers, parsing.ANSWERS).persist()
    try:
        counted = answers.agg(sf.count("vin").alias("answers"), sf.count("reason").alias("refused")).first()
        assert counted is not None  # an aggregation has one row
        if counted["answers"]:
            accepted = answers.where("reason is null").drop("reason", "received_at").withColumnRenamed("answer_reason", "reason")
            run.append(CAMPAIGN_ANSWERS, rows_of(CAMPAIGN_ANSWERS, accepted), base[CAMPAIGN_ANSWERS.name])
        if counted["refused"]:
            bad = parsed(source, run.spark, parsing.answers, parsing.ANSWERS)
            refused.append(transforms.refused_rows(bad, Stream.ANSWER))
    finally:
        answers.unpersist()


def rows_of(table: Table, found: DataFrame) -> DataFrame:
    """The table's columns; its day is that of the seq."""

    def column(name: str) -> Column:
        return transforms.instant_of("seq").alias(name) if name == table.day_of else sf.col(name)

    return found.select(*(column(each.name) for each in table.columns))
