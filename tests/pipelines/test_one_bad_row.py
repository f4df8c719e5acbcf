"""One bad row stops nothing: offenders are quarantined with the reason, and the rest is published."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import SecretStr
from redis import Redis

from expectations import Severity, load_suites
from expectations._rules import Holds
from expectations._suites import Suite
from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from manifold.contracts.names import Owner
from manifold.contracts.seq import first_seq_at
from manifold.contracts.tables import DATA, IDS, META, OUTCOMES, QUARANTINE, SEGMENTS
from manifold.lake.catalog import ensure_tables
from pipelines.ingest import backlog, run_all
from pipelines.maintenance.garbage import INGEST_BLOCKED, collect_garbage
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import data, outcome, seq_at, trigger
from tests.support.hook import hook

pytestmark = pytest.mark.slow


@pytest.fixture
def stricter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Additional rules that these tests' rows break, as a defect in the code would break the existing ones."""
    more = {
        IDS.name: "vin NOT LIKE 'BAD%'",
        OUTCOMES.name: "vin NOT LIKE 'BAD%'",
        META.name: "data_id NOT LIKE 'bad%'",
        SEGMENTS.name: "refused_because IS NOT NULL OR path NOT LIKE '%-7.parquet'",
    }
    suites = dict(load_suites())
    for table, sql in more.items():
        texts = {"name": "is_not_bad", "says": "this is not bad", "why": "these tests say so"}
        rule = Holds(type="expect_rows_to_hold", sql=sql, severity=Severity.ERROR, **texts)
        suites[table] = Suite(table=table, expectations=(*suites[table].rules, rule))
    monkeypatch.setattr("expectations._audit.load_suites", lambda: suites)
    monkeypatch.setattr("expectations._findings.load_suites", lambda: suites)


@pytest.fixture
def told(spark_lake: SparkLake) -> Iterator[list[dict[str, Any]]]:
    """The requests that a server at `alert_url` received."""
    with hook() as (url, sent):
        spark_lake.settings = spark_lake.settings.model_copy(update={"alert_url": SecretStr(url)})
        yield sent


@pytest.mark.usefixtures("stricter")
def test_offenders_are_quarantined_and_the_rest_is_published(spark_lake: SparkLake, told: list[dict[str, Any]]) -> None:
    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1"]), trigger(2, ["V2", "BAD"]), trigger(3, ["V3"])])
    spark_lake.write(Stream.DATA, [data(4, "d1", b"x"), data(5, "bad-1", b"y")])
    spark_lake.write(Stream.OUTCOME, [outcome(6, "V1", 1), outcome(7, "BAD", 2), outcome(8, "V3", 3)])
    file = spark_lake.write(Stream.TRIGGER, [trigger(9, ["V9"])], node=7)
    backlog.ingest_audit_publish(spark_lake.run("run", 10))

    assert spark_lake.rows(IDS, "vin") == ["V1", "V3"]
    assert spark_lake.rows(DATA, "data_id") == spark_lake.rows(META, "data_id") == ["d1"]
    assert spark_lake.rows(OUTCOMES, "vin") == ["V1", "V3"]
    refused = dict(spark_lake.rows(QUARANTINE, "topic", "reason"))
    aside = [seq_at(ms) for ms in (2, 5, 7)]
    assert sorted(seq for seq in spark_lake.rows(QUARANTINE, "seq") if seq > 0) == aside
    assert all("is_not_bad (these tests say so)" in reason for reason in refused.values())
    ledger = dict(spark_lake.rows(SEGMENTS, "path", "refused_because"))
    assert {path for path, why in ledger.items() if why} == {file}
    assert "is_not_bad" in ledger[file]
    (message,) = told
    assert (message["what"], message["messages"], message["files"]) == ("set aside", aside, [file])


@pytest.mark.usefixtures("stricter")
@pytest.mark.usefixtures("shared_session")
def test_a_widely_broken_rule_holds_a_run_back_and_a_rebuild_fills_from_main(
    spark_lake: SparkLake, told: list[dict[str, Any]], redis: Redis
) -> None:
    spark_lake.settings = spark_lake.settings.model_copy(update={"redis_port": redis.connection_pool.connection_kwargs["port"]})
    now = datetime.now(UTC)
    ensure_tables(spark_lake.catalog)
    spark_lake.append(
        IDS, [{"vin": "V0", "ts": now, "request_id": "r", "seq": first_seq_at(now), "data_id": "d", "applied": True}]
    )
    spark_lake.write(Stream.TRIGGER, [trigger(ms, [f"BAD{ms}"]) for ms in range(20)])
    done = run_all.rebuild(spark_lake.settings, flush_first=False)

    assert done.held_back is not None
    assert "is_not_bad" in done.held_back
    assert spark_lake.rows(IDS, "vin") == ["V0"]
    assert redis.zcard(keys.pending(Owner("V0"))) == 1
    assert redis.exists(keys.LOADED)
    assert [message["what"] for message in told] == ["held back"]

    collected = collect_garbage(spark_lake.spark, spark_lake.catalog, spark_lake.settings, run_id="gc", now=now)
    assert collected.data.kept_because == collected.expired.kept_because == INGEST_BLOCKED
