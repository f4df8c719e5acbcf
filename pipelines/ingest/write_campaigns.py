"""Writes orders to campaigns and vehicles' answers to the branches of a run."""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from manifold.archive import parsing
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import CAMPAIGN_ANSWERS, CAMPAIGN_EVENTS, CAMPAIGN_TARGETS, CAMPAIGNS, Table
from pipelines.ingest import transforms
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.reading import Source, read_and_parse


def write_campaigns(attempt: Attempt, source: Source, base: Mapping[str, int], refused: list[DataFrame]) -> None:
    """Write the stream `campaign`; append its refused rows to `refused`."""
    orders = read_and_parse(source, attempt.spark, parsing.campaigns, parsing.CAMPAIGNS).persist()
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
            attempt.append(CAMPAIGN_EVENTS, campaign_rows(CAMPAIGN_EVENTS, accepted), base[CAMPAIGN_EVENTS.name])
        if counted["plans"]:
            attempt.append(CAMPAIGNS, campaign_rows(CAMPAIGNS, accepted.where("plan is not null")), base[CAMPAIGNS.name])
        if counted["lists"]:
            listed = accepted.select("campaign", "seq", sf.inline("targets"))
            attempt.append(CAMPAIGN_TARGETS, campaign_rows(CAMPAIGN_TARGETS, listed), base[CAMPAIGN_TARGETS.name])
        if counted["refused"]:
            bad = transforms.refused_rows(
                read_and_parse(source, attempt.spark, parsing.campaigns, parsing.CAMPAIGNS), Stream.CAMPAIGN
            )
            refused.append(bad)
    finally:
        orders.unpersist()


def write_answers(attempt: Attempt, source: Source, base: Mapping[str, int], refused: list[DataFrame]) -> None:
    """Write the stream `answer`; append its refused rows to `refused`."""
    answers = read_and_parse(source, attempt.spark, parsing.answers, parsing.ANSWERS).persist()
    try:
        counted = answers.agg(sf.count("vin").alias("answers"), sf.count("reason").alias("refused")).first()
        assert counted is not None  # an aggregation has one row
        if counted["answers"]:
            accepted = answers.where("reason is null").drop("reason", "received_at").withColumnRenamed("answer_reason", "reason")
            attempt.append(CAMPAIGN_ANSWERS, campaign_rows(CAMPAIGN_ANSWERS, accepted), base[CAMPAIGN_ANSWERS.name])
        if counted["refused"]:
            bad = read_and_parse(source, attempt.spark, parsing.answers, parsing.ANSWERS)
            refused.append(transforms.refused_rows(bad, Stream.ANSWER))
    finally:
        answers.unpersist()


def campaign_rows(table: Table, found: DataFrame) -> DataFrame:
    """Select the table's columns; the column that partitions by day (`day_of`) is the time in the seq."""

    def column(name: str) -> Column:
        return transforms.instant_of("seq").alias(name) if name == table.day_of else sf.col(name)

    return found.select(*(column(each.name) for each in table.columns))
