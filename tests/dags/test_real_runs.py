"""The DAGs in the embedded Airflow, with their own lake and Redis.

Their jobs are clients of a Spark Connect server. The demo has spark-submit in the embedded Airflow, `test_cluster.py` on a
cluster; `test_browser.py` has the backfill of an archive.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.errors import Permanent
from manifold.contracts.lineage import task_run
from manifold.contracts.tables import DATA, IDS, SEGMENTS, XRAY_PROCESSED, XRAY_RAW
from manifold.lake.day_keys import DayKeys
from manifold.lake.key_ring import new_key_line
from manifold.queues import Loader, Policy
from manifold.runtime import secret_files
from pipelines.catalog import open_lake
from pipelines.populate.snapshot_range import newest_before
from tests.dags.running import RUN_S, VINS, Ingested, Platform
from tests.pipelines.makers import NOON_MS
from tests.pipelines.signal_makers import readings
from tests.support.lineage import names, runs_of, told_in

INGEST = ("discover", "ingest", "audit", "publish", "populate")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def empty_queues(running: Platform) -> None:
    """Empty the queues, and have them populated with all that the lake has: a run over days long past adds nothing to them."""
    ingested = newest_before(open_lake(running.settings), IDS, datetime.now(UTC))
    with Redis(port=running.redis.port) as redis:
        redis.flushall()
        Loader(redis, Policy.of(running.settings)).mark_loaded(1)
        if ingested is not None:
            redis.set(keys.POPULATED, ingested)


@pytest.fixture
def platform(running: Platform) -> Platform:
    """The platform with `empty_queues`."""
    empty_queues(running)
    return running


@dataclass(frozen=True, slots=True)
class Past:
    """A run over a past interval."""

    run_id: str
    ingested: list[str]  # request ids, once for each vehicle
    days: list[str]  # of the signals, which it could not open


@pytest.fixture(scope="module")
def past(running: Platform) -> Past:
    """Such a run, without the key ring: the interval contains signals and one batch, and one batch is on either side of it."""
    empty_queues(running)
    days = ["2026-03-01", "2026-03-02", (datetime.now(UTC) - timedelta(days=1)).date().isoformat()]
    began, ended = datetime(2026, 3, 1, tzinfo=UTC), datetime.now(UTC) - timedelta(hours=1)
    running.archive_batch(began - timedelta(seconds=1), "task_before")
    running.archive_batch(began + timedelta(hours=1), "task_within")
    running.archive_batch(ended + timedelta(minutes=58), "task_after")
    gateway = running.gateway()
    instants = [round(datetime.fromisoformat(f"{day}T12:00:00+00:00").timestamp() * 1000) - NOON_MS for day in days]
    running.archive_signals(*(gateway.raw(at, "d", readings(("humidity", 4, "%"))) for at in instants))
    ring = secret_files.folder(running.settings.home) / secret_files.KEYS
    key = ring.read_text()
    ring.unlink()
    run_id = running.run("ingest_archives", **{"from": began.isoformat(), "to": ended.isoformat()}, flush=False)
    ring.write_text(key)
    return Past(run_id, running.values(IDS, "request_id"), days)


def test_a_run_ingests_the_archive_fills_the_queues_and_reports_counts(running: Platform, ingested: Ingested) -> None:
    assert running.values(IDS, "request_id").count(ingested.request_id) == len(VINS)
    assert f"{ingested.request_id}-data" in running.values(DATA, "data_id")
    assert ingested.run_id in running.values(SEGMENTS, "run_id")
    report = Path(running.settings.reports_folder, "runs", ingested.run_id, "index.html")
    assert "Passed" in report.read_text()
    results = {task: running.api.result("ingest_archives", ingested.run_id, task) for task in INGEST}
    assert results["discover"]["segments"] >= 2
    assert results["ingest"]["written"][IDS.name] >= len(VINS)
    assert results["populate"]["queued"] >= len(VINS)
    assert all(result["seconds"] >= 0 for result in results.values())


def test_lineage_of_a_run_links_the_task_to_the_report(running: Platform, ingested: Ingested) -> None:
    events = told_in(running.settings.home / "lineage.jsonl")
    known = [each for each in events if ingested.run_id == each["run"]["facets"].get("externalQuery", {}).get("externalQueryId")]
    assert [(each["job"]["name"], each["eventType"]) for each in known] == [
        (job, kind) for job in ("manifold.ingest", "manifold.audit") for kind in ("START", "COMPLETE")
    ]
    due = datetime.fromisoformat(running.api.run("ingest_archives", ingested.run_id)["run_after"])
    task = task_run("default", "ingest_archives", "publish", attempt=1, mapped=-1, due=due)
    parents = [each["run"]["facets"]["parent"] for each in known]
    assert {(p["job"]["name"], p["run"]["runId"]) for p in parents} == {(task.job, task.run_id)}
    assert names(known[1]["outputs"]) == names(known[3]["inputs"])
    assert known[3]["outputs"][0]["name"].endswith(f"runs/{ingested.run_id}/index.html")
    populated = [each for run in runs_of(events, "populate") for each in run if each["eventType"] == "COMPLETE"]
    assert names(populated[0]["outputs"]) == ["queues"]


def test_a_run_over_a_past_interval_takes_only_that_interval(running: Platform, past: Past) -> None:
    taken = past.ingested

    assert {each: taken.count(each) for each in ("task_before", "task_within", "task_after")} == {
        "task_before": 0,
        "task_within": len(VINS),
        "task_after": 0,
    }
    assert running.api.task_states("ingest_archives", past.run_id)["populate"] == "skipped", "nothing of so long ago is pending"


def test_rebuild_ingests_recorded_segments_and_fills_empty_queues(platform: Platform) -> None:
    seq = platform.archive_batch(datetime.now(UTC) - timedelta(minutes=2), "task_map_4")

    with Redis(port=platform.redis.port) as redis:
        redis.flushall()

    platform.run("rebuild_queues")

    assert all(seq in platform.pending(vin) for vin in VINS)
    with Redis(port=platform.redis.port) as redis:
        assert redis.exists(keys.LOADED)


def test_signals_are_reprocessed_one_run_per_day_and_keys_are_rewrapped(platform: Platform, past: Past) -> None:
    process, days = "process_signals", past.days
    *earlier, yesterday = days
    ring = secret_files.folder(platform.settings.home) / secret_files.KEYS
    old_key = ring.read_text()
    assert read_days(platform) == []

    run_id = platform.run(process)
    assert platform.api.result(process, run_id, process)["days"] == read_days(platform) == [yesterday]
    known = platform.run_ids(process, "backfill")
    done = platform.backfill(process, earlier[0], earlier[1])
    assert done.returncode == 0, done.stderr
    runs = platform.ended(process, "backfill", known, 2, within_s=2 * RUN_S)
    assert [platform.api.result(process, run["dag_run_id"], process)["days"] for run in runs] == [[day] for day in earlier]
    assert read_days(platform) == days

    ring.write_text(f"{new_key_line()}\n{old_key}")
    run_id = platform.run("rotate_keys")
    rotated = platform.api.result("rotate_keys", run_id, "rotate_keys")
    assert (rotated["wrapped"], rotated["gone"]) == (len(days), [])
    ring.write_text(ring.read_text().splitlines()[0])
    left = DayKeys.of(platform.settings)
    opened = [left.open(row["payload"], seq=row["seq"]) for row in platform.rows(XRAY_RAW, "seq", "payload")]
    assert opened == len(days) * [readings(("humidity", 4, "%"))]


def read_days(platform: Platform) -> list[str]:
    """Days with signals whose payloads can be read."""
    rows = platform.rows(XRAY_PROCESSED, "received_at", "problem")
    return sorted(row["received_at"].date().isoformat() for row in rows if row["problem"] is None)


def test_a_run_with_a_param_of_the_wrong_type_is_refused(platform: Platform) -> None:
    with pytest.raises(Permanent, match="refuses with 4"):
        platform.api.trigger_dag("ingest_archives", {"flush": "perhaps"})
