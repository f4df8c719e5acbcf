"""Writes the orders to campaigns, and the answers of vehicles, to the branches of a run."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from manifold.archive import parsing
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import CAMPAIGN_ANSWERS, CAMPAIGN_EVENTS, CAMPAIGN_TARGETS, CAMPAIGNS, Table
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.reading import Source, read_and_parse
from pipelines.ingest.transforms import instant_of, refused_rows


def write_campaigns(attempt: Attempt, source: Source, refused: list[DataFrame]) -> None:
    """Write the stream `campaign`; append its refused rows to `refused`."""
    orders = read_and_parse(source, attempt.spark, parsing.campaigns, parsing.CAMPAIGNS).persist()
    try:
        # `count` counts the rows in which the column is not null. A refused message has a reason, and null in columns of orders.
        counts = orders.agg(
            sf.count("campaign").alias("orders"),
            sf.count("plan").alias("plans"),
            sf.count_if(sf.size("targets") > 0).alias("with_targets"),
            sf.count("reason").alias("refused"),
        ).first()
        assert counts is not None  # an aggregation has one row
        accepted = orders.where("reason is null")
        if counts["orders"]:
            attempt.append(CAMPAIGN_EVENTS, campaign_rows(CAMPAIGN_EVENTS, accepted))
        if counts["plans"]:
            plans = accepted.where("plan is not null")
            attempt.append(CAMPAIGNS, campaign_rows(CAMPAIGNS, plans))
        if counts["with_targets"]:
            targets = accepted.select("campaign", "seq", sf.inline("targets"))
            attempt.append(CAMPAIGN_TARGETS, campaign_rows(CAMPAIGN_TARGETS, targets))
        if counts["refused"]:
            refused.append(refused_rows(orders, Stream.CAMPAIGN))
    finally:
        orders.unpersist()


def write_answers(attempt: Attempt, source: Source, refused: list[DataFrame]) -> None:
    """Write the stream `answer`; append its refused rows to `refused`."""
    answers = read_and_parse(source, attempt.spark, parsing.answers, parsing.ANSWERS).persist()
    try:
        counts = answers.agg(sf.count("vin").alias("answers"), sf.count("reason").alias("refused")).first()
        assert counts is not None  # an aggregation has one row
        if counts["answers"]:
            # In the parsed rows, `reason` is that of a refusal. In the table, it is the reason that the vehicle gave.
            accepted = answers.where("reason is null").drop("reason", "received_at").withColumnRenamed("answer_reason", "reason")
            attempt.append(CAMPAIGN_ANSWERS, campaign_rows(CAMPAIGN_ANSWERS, accepted))
        if counts["refused"]:
            refused.append(refused_rows(answers, Stream.ANSWER))
    finally:
        answers.unpersist()


def campaign_rows(table: Table, parsed: DataFrame) -> DataFrame:
    """Select the table's columns. The column by whose day the table is partitioned (`day_of`) gets the time in the seq."""

    def value_of(name: str) -> Column:
        return instant_of("seq").alias(name) if name == table.day_of else sf.col(name)

    return parsed.select(*(value_of(column.name) for column in table.columns))
