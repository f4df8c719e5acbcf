"""A report states the fate of its run: published, overtaken, held back, or undecided."""

import argparse
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from manifold.contracts.envelope import Stream
from manifold.contracts.errors import Permanent
from manifold.contracts.tables import IDS, QUALITY
from manifold.lake.reports import INDEX, TRENDS, kept_runs, open_reports, run_page
from pipelines.ingest import backlog, write_triggers
from pipelines.ingest.backlog import ingest_and_audit
from pipelines.ingest.trends import draw_trends
from pipelines.stages import ingest as stages
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import at, trigger
from tests.support.console import manifold

pytestmark = pytest.mark.slow

BEFORE, EARLIER, LATER, AFTER = 0, 1_000, 2_000, 3_000  # start times of runs in milliseconds: reports show seconds


def page_of(lake: SparkLake, run_id: str) -> str:
    """The sentence on the run's page about its state."""
    page = (open_reports(lake.settings).read(run_page(run_id)) or b"").decode()
    (sentence,) = re.findall(r'<p class="[^"]+">(.+), judged at', page)
    return str(sentence)


def index_of(lake: SparkLake) -> dict[str, str]:
    """The state of each run on the index."""
    index = (open_reports(lake.settings).read(INDEX) or b"").decode()
    return dict(re.findall(r'/index.html">([^<]+)</a></td>\s*<td class="[^"]*">([^<]+)</td>', index))


def report(lake: SparkLake, *arguments: str) -> tuple[int, Any]:
    """The exit status and output of `manifold report --json`."""
    done = manifold("report", "--json", *arguments, env={"MANIFOLD_HOME": str(lake.settings.home)})
    return done.returncode, json.loads(done.stdout or "null")


def in_charts(lake: SparkLake, *run_ids: str) -> list[str]:
    """Which of these runs are in the charts."""
    draw_trends(lake.settings, now=at(AFTER))
    page = (open_reports(lake.settings).read(TRENDS) or b"").decode()
    return [run_id for run_id in run_ids if f"runs/{run_id}/" in page]


def ingest(lake: SparkLake, run_id: str, ms: int) -> None:
    backlog.ingest_audit_publish(lake.run(run_id, ms))


@pytest.fixture
def after_audit(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], None]], None]:
    """Run something once between a run's audit and its publication."""

    def interpose(run_id: str, happens: Callable[[], None]) -> None:
        waiting = [happens]

        def judge_then_wait(run: Any) -> Any:
            done = ingest_and_audit(run)
            if run.run_id == run_id and waiting:
                waiting.pop()()
            return done

        monkeypatch.setattr(backlog, "ingest_and_audit", judge_then_wait)

    return interpose


def test_one_of_two_concurrent_runs_is_published_and_the_other_overtaken(
    spark_lake: SparkLake, after_audit: Callable[[str, Callable[[], None]], None]
) -> None:
    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1"])])
    seen_meanwhile: list[Any] = []

    def another_is_first() -> None:
        seen_meanwhile.extend([page_of(spark_lake, "slow"), index_of(spark_lake)])
        ingest(spark_lake, "fast", EARLIER)

    after_audit("slow", another_is_first)
    ingest(spark_lake, "slow", LATER)

    assert seen_meanwhile == ["Passed; not published yet", {"slow": "not decided"}]
    assert spark_lake.rows(IDS, "vin") == ["V1"]
    assert sorted(set(spark_lake.rows(QUALITY, "run_id"))) == ["fast", "slow"], "every audit result is kept"
    assert page_of(spark_lake, "fast") == "Passed and published"
    assert "overtaken" in page_of(spark_lake, "slow")
    assert index_of(spark_lake) == {"slow": "overtaken", "fast": "published"}
    status, newest = report(spark_lake)
    assert (status, newest["run_id"], newest["state"]) == (0, "fast", "published")
    assert in_charts(spark_lake, "fast", "slow") == ["fast"]

    said = manifold("report", env={"MANIFOLD_HOME": str(spark_lake.settings.home)}).stdout
    assert "run fast: published" in said
    assert "manifold report --all" in said
    listed = manifold("report", "--all", env={"MANIFOLD_HOME": str(spark_lake.settings.home)}).stdout
    assert [line.split()[:2] for line in listed.splitlines() if "2026-" in line] == [["slow", "overtaken"], ["fast", "published"]]
    assert report(spark_lake, "--run-id", "slow")[1]["state"] == "overtaken"


def test_an_overtaken_run_with_messages_left_is_audited_again_and_published(
    spark_lake: SparkLake, after_audit: Callable[[str, Callable[[], None]], None]
) -> None:
    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1"])])

    def another_is_first() -> None:
        ingest(spark_lake, "fast", EARLIER)
        spark_lake.write(Stream.TRIGGER, [trigger(9000, ["V2"])])

    after_audit("slow", another_is_first)
    ingest(spark_lake, "slow", LATER)

    assert spark_lake.rows(IDS, "vin") == ["V1", "V2"]
    assert index_of(spark_lake) == {"slow": "published", "fast": "published"}
    assert len({instant for run_id, instant in spark_lake.rows(QUALITY, "run_id", "at") if run_id == "slow"}) == 2
    draw_trends(spark_lake.settings, now=at(AFTER))
    assert "The newest 2 judgements" in (open_reports(spark_lake.settings).read(TRENDS) or b"").decode()


def ingest_stages(lake: SparkLake, run_id: str) -> argparse.Namespace:
    """Run the stage `ingest`, which also audits; return the options of the next stages."""
    mine = argparse.Namespace(run_id=run_id)
    stages.ingest.run(lake.settings, argparse.Namespace(run_id=run_id, no_flush=True, start=None, end=None, recent=False))
    return mine


@pytest.mark.usefixtures("shared_session")
def test_a_run_that_breaks_a_rule_is_held_back_and_the_newest_published_is_shown(
    spark_lake: SparkLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1"])])
    ingest(spark_lake, "good", BEFORE)
    right = write_triggers.ids_rows
    spark_lake.write(Stream.TRIGGER, [trigger(9000 + ms, [f"V{ms}"]) for ms in range(20)])
    with monkeypatch.context() as patched:
        patched.setattr(write_triggers, "ids_rows", lambda triggers: right(triggers).unionAll(right(triggers)))
        bad = ingest_stages(spark_lake, "bad")
    with pytest.raises(Permanent, match="held back"):
        stages.audit.run(spark_lake.settings, bad)

    assert page_of(spark_lake, "bad") == "Failed: the run is held back"
    assert index_of(spark_lake) == {"bad": "held back", "good": "published"}
    status, newest = report(spark_lake)
    assert (status, newest["run_id"]) == (1, "good"), "a script must learn that a newer run is held back"
    assert [(run["run_id"], run["state"]) for run in newest["newer"]] == [("bad", "held back")]
    assert in_charts(spark_lake, "bad") == ["bad"]


@pytest.mark.usefixtures("shared_session")
def test_airflow_stages_say_whether_their_run_was_published_or_overtaken(spark_lake: SparkLake) -> None:
    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1"])])
    mine, manual = (ingest_stages(spark_lake, run_id) for run_id in ("scheduled__1+00:00", "manual"))
    stages.audit.run(spark_lake.settings, mine)
    assert index_of(spark_lake) == dict.fromkeys((mine.run_id, manual.run_id), "not decided")

    stages.publish.run(spark_lake.settings, manual)
    stages.publish.run(spark_lake.settings, mine)

    assert spark_lake.rows(IDS, "vin") == ["V1"]
    assert page_of(spark_lake, "manual") == "Passed and published"
    assert index_of(spark_lake) == {mine.run_id: "overtaken", "manual": "published"}
    assert report(spark_lake)[1]["run_id"] == "manual"


def test_the_state_of_a_killed_run_is_recorded_by_the_next(spark_lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1"])])

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(backlog, "update_report_states", killed)
        with pytest.raises(KeyboardInterrupt):
            ingest(spark_lake, "killed", BEFORE)
    assert [run["state"] for run in kept_runs(open_reports(spark_lake.settings))] == ["not decided"]

    ingest(spark_lake, "next", LATER)

    assert index_of(spark_lake) == {"killed": "published"}
