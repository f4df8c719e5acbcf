"""Audit results for the rows of a run."""

import json
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from pyspark.sql import SparkSession

from expectations import Severity, load_suites, publish_trends, results_of
from manifold.contracts.errors import Permanent
from manifold.lake.files import Files
from manifold.lake.reports import validation_result
from tests.expectations.broken import FOUND, broken
from tests.expectations.rows import NOON, SEQ, VIN, data, entry, good, judged, meta, refused, segment

pytestmark = pytest.mark.slow


def test_a_good_run_passes_silently_and_its_report_lists_every_table(spark: SparkSession, tmp_path: Path) -> None:
    result = judged(spark, good(), tmp_path)

    assert result.passed
    assert (result.failures, result.warnings) == ((), ())
    assert result.rows == dict.fromkeys(good(), 1)
    page = Path(result.report).read_text()
    assert all(table in page for table in good())


def test_each_broken_rule_is_found_with_its_severity_and_rows(spark: SparkSession, tmp_path: Path) -> None:
    result = judged(spark, broken(), tmp_path, data_wait=timedelta(seconds=1))

    found = (*result.failures, *result.warnings)
    assert not result.passed
    assert {(finding.table, finding.rule): (finding.severity.value, finding.rows) for finding in found} == FOUND


def test_a_failure_is_explained_and_result_rows_of_rules_are_audited_too(spark: SparkSession, tmp_path: Path) -> None:
    added = {"sdv_fanout_data": [data(), data("other-bytes", sha1="00" * 20)], "sdv_fanout_meta": [meta(), meta("other-bytes")]}
    result = judged(spark, added, tmp_path)
    (failure,) = result.failures
    assert str(failure).startswith(
        "sdv_fanout_data: sha1_is_of_payload (sha1 is the SHA-1 of payload: sha1 = sha1(payload)) does not hold for 1 of 2 rows: "
    )
    assert [json.loads(sample)["data_id"] for sample in failure.samples] == ["other-bytes"]
    assert "other-bytes" in Path(result.report).read_text()

    rows = [row for row in results_of(result, NOON).to_pylist() if row["suite"] == "sdv_fanout_data"]
    assert len(rows) == len(load_suites()["sdv_fanout_data"].rules)
    (broken,) = [row for row in rows if row["outcome"] != "passed"]
    assert (broken["suite"], broken["rule"], broken["severity"]) == ("sdv_fanout_data", "sha1_is_of_payload", "error")
    assert (broken["judged"], broken["unexpected"], broken["at"]) == (2, 1, NOON)
    assert [row["data_id"] for row in json.loads(broken["sample"])] == ["other-bytes"]

    settled = {"seq": SEQ, "action": "replayed", "at": NOON, "note": None, "segment": "trigger/x.replay.parquet"}
    own = {
        "quality_results": [*rows, rows[0], rows[1] | {"unexpected": 1}],
        "quarantine_actions": [settled, settled | {"segment": None}],
    }
    assert {(f.table, f.rule, f.rows) for f in judged(spark, own, tmp_path, run_id="own").failures} == {
        ("quality_results", "run_id_suite_rule_at_is_unique", 4),
        ("quality_results", "counts_fit_the_outcome", 1),
        ("quarantine_actions", "seq_at_is_unique", 2),
        ("quarantine_actions", "a_replay_names_its_segment", 1),
    }


def test_data_docs_are_sentences_with_severity_and_reason(spark: SparkSession, tmp_path: Path) -> None:
    judged(spark, {"sdv_fanout_ids": [entry(), entry(SEQ + 2, ts=NOON)]}, tmp_path)

    (page,) = (tmp_path / "validations" / "sdv_fanout_ids").rglob("*.html")
    shown = " ".join(text_of(page).split())
    for sentence in (
        "kept values must never be null.",
        "values must be greater than or equal to 2020-01-01T00:00:00+00:00 and less than or equal to 2026-03-01T12:01:00+00:00",
        "kept (vin, seq) once in what the run adds",
        "kept vin is a VIN by ISO 3779 with its check digit: vin_is_iso_3779",
        "kept (data_id) exists in sdv_fanout_meta",
        "broken ts is the instant at which seq was given",
        "1 unexpected values found. 50% of 2 total rows.",
        "error the row lies in another day than its outcome will, and joins by day miss it",
        "warning a recorder's clock is wrong; the order of its triggers still holds",
    ):
        assert sentence in shown
    assert "[true]" not in shown.lower()


def test_great_expectations_audits_on_spark_and_counts_and_names_offenders(spark: SparkSession, tmp_path: Path) -> None:
    """Checked by the library's own results, which are stored next to the pages."""
    rows = [entry(), entry(), entry(SEQ + 2, vin="not/a/topic/level"), entry(SEQ + 3)]
    result = judged(spark, {"sdv_fanout_ids": rows}, tmp_path)

    said = json.loads((tmp_path / validation_result(result.run_id, "sdv_fanout_ids")).read_text())
    assert said["meta"]["batch_spec"]["batch_data"] == "SparkDataFrame"
    assert {one["result"]["element_count"] for one in said["results"]} == {4}
    broken = [one for one in said["results"] if not one["success"]]
    counts = {one["expectation_config"]["meta"]["rule"]: one["result"]["unexpected_count"] for one in broken}
    assert counts == {"vin_seq_is_unique": 2, "vin_is_a_topic_level": 1, "vin_is_iso_3779": 1}
    assert {failure.rule: failure.keys for failure in result.failures} == {
        "vin_seq_is_unique": ((SEQ + 1,),),
        "vin_is_a_topic_level": ((SEQ + 2,),),
    }


def test_the_pages_are_readable_before_the_result_can_be_stored(spark: SparkSession, tmp_path: Path) -> None:
    result = judged(spark, {"quarantine": [refused()]}, tmp_path)

    assert (tmp_path / "index.html").is_file()
    assert len(results_of(result, NOON)) == len(load_suites()["quarantine"].rules)


def test_a_trigger_that_waits_too_long_for_its_data_is_a_warning(spark: SparkSession, tmp_path: Path) -> None:
    rows = {"sdv_fanout_ids": [entry(), entry(SEQ + 2, data_id="to-come")]}

    young = judged(spark, rows, tmp_path, data_wait=timedelta(minutes=5))
    old = judged(spark, rows, tmp_path, data_wait=timedelta(minutes=1))

    assert young.warnings == ()
    assert [(finding.rule, finding.severity) for finding in old.warnings] == [("data_id_is_known", Severity.WARNING)]
    assert old.passed


def test_rows_already_in_the_table_count_for_uniqueness(spark: SparkSession, tmp_path: Path) -> None:
    stored = {"ingested_segments": [segment(run_id="an earlier one"), segment()]}

    result = judged(spark, {"ingested_segments": [segment()]}, tmp_path, stored=stored)

    assert [finding.rule for finding in result.failures] == ["path_is_unique"]


def test_an_empty_run_passes_and_has_a_page(spark: SparkSession, tmp_path: Path) -> None:
    result = judged(spark, {"sdv_fanout_ids": []}, tmp_path)

    assert result.passed
    assert result.rows == dict.fromkeys(good(), 0)
    assert "nothing to judge" in Path(result.report).read_text()


def test_the_folder_keeps_the_newest_runs_and_the_index_lists_them(spark: SparkSession, tmp_path: Path) -> None:
    for hour, run_id in enumerate(("first", "second", "third")):
        judged(spark, {"quarantine": [refused()]}, tmp_path, run_id=run_id, as_of=NOON + timedelta(hours=hour), keep=2)

    index = (tmp_path / "index.html").read_text()
    kept = {folder.name for folder in (tmp_path / "runs").iterdir()}
    details = {folder.name for folder in (tmp_path / "validations" / "quarantine").iterdir()}
    assert (kept, details) == ({"second", "third"}, {"second", "third"})
    assert index.index("third") < index.index("second")
    assert "first" not in index


def test_a_second_audit_of_a_run_replaces_its_pages(spark: SparkSession, tmp_path: Path) -> None:
    judged(spark, {"quarantine": [refused(reason="")]}, tmp_path)
    again = judged(spark, {"quarantine": [refused()]}, tmp_path, as_of=NOON + timedelta(minutes=1))

    assert len(list((tmp_path / "validations").rglob("*.html"))) == 1
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert "Passed" in Path(again.report).read_text()


class Text(HTMLParser):
    """The text of a page without scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._said = True

    def handle_starttag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        self._said = tag not in {"script", "style"}

    def handle_endtag(self, _tag: str) -> None:
        self._said = True

    def handle_data(self, data: str) -> None:
        self.found += [data] if self._said else []


def text_of(page: Path) -> str:
    text = Text()
    text.feed(page.read_text())
    return " ".join(text.found)


class Links(HTMLParser):
    """The link targets of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name == "href"]


def test_every_link_of_the_pages_resolves(spark: SparkSession, tmp_path: Path) -> None:
    result = judged(spark, {"quarantine": [refused(reason="")]}, tmp_path)
    report = Path(result.report)
    publish_trends(results_of(result, NOON).to_pylist(), Files(tmp_path.as_uri()))

    for page in (report, tmp_path / "index.html", tmp_path / "trends.html"):
        links = Links()
        links.feed(page.read_text())
        assert links.found
        assert [link for link in links.found if not (page.parent / unquote(link)).is_file()] == []


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        pytest.param({"references": {}}, "pass references\\['sdv_fanout_meta'\\]", id="a missing reference"),
        pytest.param({"run_id": "../other"}, "names a folder of the reports", id="a run id that is a path"),
    ],
)
def test_invalid_arguments_are_named(spark: SparkSession, tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(Permanent, match=says):
        judged(spark, {"sdv_fanout_ids": [entry(vin=VIN)]}, tmp_path, **changed)
