"""Lineage of a run: archive → tables → report, as OpenLineage events."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from manifold.contracts.envelope import Stream
from manifold.contracts.errors import SettingsError
from manifold.contracts.tables import IDS, SEGMENTS
from manifold.lake.lineage import flush
from manifold.settings import load_settings
from pipelines.ingest import backlog, lineage, write_triggers
from pipelines.ingest.audit import AuditFailed
from pipelines.ingest.backlog import ingest_audit_publish
from pipelines.ingest.lineage import emit_held_back, emit_lineage
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import at, data, outcome, trigger
from tests.pipelines.plain import ingest_and_audit, without_spark
from tests.support.lineage import backend, says, telling, told_in
from tests.support.servers import free_port

VIN = "1M8GDM9AXKP042788"


@dataclass
class Graph:
    """Events merged as a lineage catalog does."""

    events: list[dict[str, Any]]

    def run(self, job: str) -> dict[str, Any]:
        """The end of a job's only run, which started before it ended."""
        began, ended = [event for event in self.events if event["job"]["name"] == job]
        assert (began["eventType"], ended["eventType"]) == ("START", "COMPLETE")
        assert began["run"] == ended["run"]
        return ended

    def names(self, job: str, side: str) -> set[str]:
        return {dataset["name"] for dataset in self.run(job)[side]}


def record(lake: SparkLake) -> None:
    lake.write(Stream.TRIGGER, [trigger(1, [VIN]), trigger(2, [VIN])])
    lake.write(Stream.DATA, [data(3, "d1", b"one")])
    lake.write(Stream.OUTCOME, [outcome(4, VIN, 1)])


def tell_at(lake: SparkLake, url: str) -> None:
    lake.settings = telling(lake.settings, url)


def test_archive_tables_and_report_of_a_run_are_linked(spark_lake: SparkLake, tmp_path: Path) -> None:
    file = tmp_path / "lineage" / "events.jsonl"
    tell_at(spark_lake, f"file://{file}")
    record(spark_lake)
    _, report, _ = ingest_audit_publish(spark_lake.run("scheduled__1", 10))
    told = told_in(file)
    graph = Graph(told)

    archive = str(spark_lake.settings.home / "archive")
    assert graph.names("manifold.ingest", "inputs") == {f"{archive}/{stream}" for stream in ("trigger", "data", "outcome")}
    read = {Path(each["name"]).name: each["inputFacets"]["inputStatistics"] for each in graph.run("manifold.ingest")["inputs"]}
    assert (read["trigger"]["fileCount"], read["trigger"]["rowCount"]) == (1, 2)

    ids = spark_lake.catalog.load_table(IDS.identifier)
    (written,) = (
        each for each in graph.run("manifold.ingest")["outputs"] if each["name"] == ids.location().removeprefix("file://")
    )
    snapshot = ids.current_snapshot()
    assert snapshot is not None
    assert written["facets"]["version"]["datasetVersion"] == str(snapshot.snapshot_id)
    assert written["facets"]["symlinks"]["identifiers"][0]["name"] == "sdv.sdv_fanout_ids"
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 2

    assert graph.names("manifold.audit", "inputs") == graph.names("manifold.ingest", "outputs")
    assert any(name.endswith(f"/{SEGMENTS.name}") for name in graph.names("manifold.audit", "inputs"))
    assert graph.names("manifold.audit", "outputs") == {str(report).removeprefix("file://")}
    assert graph.run("manifold.audit")["run"]["facets"]["externalQuery"]["externalQueryId"] == "scheduled__1"

    assert emit_lineage(spark_lake.catalog, spark_lake.settings, "scheduled__1")
    assert told_in(file) == told * 2, "a run emitted again is the same run"
    assert not emit_lineage(spark_lake.catalog, spark_lake.settings, "another")


@pytest.fixture
def recorded(spark_lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> SparkLake:
    """A lake whose archive is ingested without Spark and without a report."""
    monkeypatch.setattr(backlog, "ingest_and_audit", ingest_and_audit)
    record(spark_lake)
    return spark_lake


def test_an_endpoint_receives_each_event(recorded: SparkLake) -> None:
    with backend(says(201)) as catalog:
        tell_at(recorded, catalog.url)
        ingest_audit_publish(without_spark(recorded.catalog, recorded.settings, "run", at(10)))
        assert flush(60)
    assert [(event["job"]["name"], event["eventType"]) for event in catalog.got] == [
        ("manifold.ingest", "START"),
        ("manifold.ingest", "COMPLETE"),
    ]


def test_a_held_back_run_has_failed_and_names_its_broken_rules(
    spark_lake: SparkLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, right = tmp_path / "events.jsonl", write_triggers.ids_rows
    tell_at(spark_lake, f"file://{file}")
    spark_lake.write(Stream.TRIGGER, [trigger(ms, [f"V{ms}"]) for ms in range(20)])
    with monkeypatch.context() as patched:
        patched.setattr(write_triggers, "ids_rows", lambda triggers: right(triggers).unionAll(right(triggers)))
        with pytest.raises(AuditFailed) as held_back:
            ingest_audit_publish(spark_lake.run("run", 10))
    told = told_in(file)
    assert [(event["job"]["name"], event["eventType"]) for event in told] == [
        (job, kind) for job in ("manifold.ingest", "manifold.audit") for kind in ("START", "FAIL")
    ]
    began, failed, _, judged = told
    assert "errorMessage" not in began["run"]["facets"]
    assert "sdv_fanout_ids: " in failed["run"]["facets"]["errorMessage"]["message"]
    assert (failed["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"], failed["outputs"]) == (20, [])
    rules = {
        Path(each["name"]).name: [rule["assertion"] for rule in each["inputFacets"]["dataQualityAssertions"]["assertions"]]
        for each in judged["inputs"]
    }
    result = held_back.value.result
    assert rules[IDS.name] == [each.rule for each in (*result.failures, *result.warnings) if each.table == IDS.name] != []
    assert rules[SEGMENTS.name] == []
    assert judged["outputs"][0]["name"] == result.report.removeprefix("file://")
    assert "V1" not in file.read_text()

    before = len(told)
    monkeypatch.setattr(spark_lake.catalog, "load_table", broken)
    assert not emit_held_back(spark_lake.catalog, spark_lake.settings, "run", result), "an error must not stop the run"
    monkeypatch.undo()
    ingest_audit_publish(spark_lake.run("run", 20))
    again = told_in(file)[before:]
    assert [event["eventType"] for event in again] == ["START", "COMPLETE"] * 2
    assert {event["run"]["runId"] for event in again}.isdisjoint(event["run"]["runId"] for event in told)


def broken(*_: object) -> None:
    raise RuntimeError("the catalog is away")


def test_a_run_succeeds_although_no_one_receives_its_events(recorded: SparkLake, caplog: pytest.LogCaptureFixture) -> None:
    tell_at(recorded, f"http://somebody:secret@127.0.0.1:{free_port()}/api/v1/lineage")
    ingest_audit_publish(without_spark(recorded.catalog, recorded.settings, "run", at(10)))
    assert flush(60)
    assert recorded.rows(IDS, "vin") == [VIN, VIN]
    assert "MANIFOLD_LINEAGE_URL did not answer: ConnectError" in caplog.text
    assert "secret" not in caplog.text


def test_an_address_of_another_scheme_is_refused_without_being_shown() -> None:
    with pytest.raises(SettingsError, match=r"MANIFOLD_LINEAGE_URL=\*\*\*: .*must begin with"):
        load_settings(lineage_url="kafka://somebody:secret@broker")


def test_a_run_succeeds_although_its_outputs_cannot_be_described(
    recorded: SparkLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_at(recorded, f"file://{tmp_path / 'events.jsonl'}")
    monkeypatch.setattr(lineage, "committed_runs", broken)
    ingest_audit_publish(without_spark(recorded.catalog, recorded.settings, "run", at(10)))
    assert recorded.rows(IDS, "vin") == [VIN, VIN]
    assert told_in(tmp_path / "events.jsonl") == []


@pytest.mark.parametrize("text", ["no run", "/job/01940f6c-8000-7a0d-8000-000000000001", "airflow/a.b/1"])
def test_an_invalid_parent_run_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="MANIFOLD_LINEAGE_PARENT"):
        load_settings(lineage_parent=text)
