"""The lease of rewriting jobs: one holder at a time, expired ones are taken over, and ingest never needs it."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from manifold.contracts.envelope import Stream
from manifold.contracts.tables import IDS, SEGMENTS
from manifold.lake.catalog import open_catalog
from pipelines.cli import TRY_AGAIN, main
from pipelines.ingest.lease import LEASE_S, TERMS, Lease, LeaseHeld, LeaseLost, check_lease, rewriting
from pipelines.maintenance.garbage_files import drop_segments
from pipelines.maintenance.restore import restore
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import at, trigger
from tests.pipelines.plain import ingest, read
from tests.support.platforms import variables

COMMIT = f"commit {SEGMENTS.identifier}"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def fresh(lake: Lake) -> Lake:
    """Empty tables."""
    lake.renew()
    return lake


def test_a_second_job_is_told_who_holds_the_lease_and_until_when(fresh: Lake) -> None:
    catalog = open_catalog(fresh.settings)
    with (
        rewriting(catalog, "compaction", clock=lambda: NOON),
        pytest.raises(
            LeaseHeld, match=r"^compaction \(process \d+ on .+\) holds the maintenance lease until 2026-03-01 12:00:45 UTC .*try"
        ),
    ):
        Lease(open_catalog(fresh.settings), "erasure", lambda: NOON + timedelta(seconds=LEASE_S - 1)).take()


def test_a_finished_or_failed_job_leaves_no_lease(fresh: Lake) -> None:
    catalog = open_catalog(fresh.settings)
    with rewriting(catalog, "compaction"):
        pass
    with pytest.raises(ValueError, match="broken"), rewriting(catalog, "erasure"):
        raise ValueError("broken")
    segments = catalog.load_table(SEGMENTS.identifier)
    assert set(segments.refs()) == {"main"}
    assert TERMS not in segments.properties


def test_one_of_two_concurrent_claimants_gets_the_lease(fresh: Lake) -> None:
    one, other = (
        fresh.player(lambda catalog, name=name: Lease(catalog, name, lambda: NOON).take()).go(until=COMMIT)  # type: ignore[misc]
        for name in ("one", "other")
    )
    assert one.steps[-1] == other.steps[-1] == COMMIT
    one.go()
    with pytest.raises(LeaseHeld, match=r"^one "):
        other.go()


def test_an_expired_lease_is_taken_over_and_a_renewed_one_is_not(fresh: Lake) -> None:
    catalog, now = open_catalog(fresh.settings), [NOON]
    first = Lease(catalog, "first", lambda: now[0])
    first.take()
    now[0] += timedelta(seconds=LEASE_S - 1)
    first.renew()
    now[0] += timedelta(seconds=2)
    second = Lease(open_catalog(fresh.settings), "second", lambda: now[0])
    with pytest.raises(LeaseHeld):
        second.take()
    now[0] += timedelta(seconds=LEASE_S)
    second.take()
    with pytest.raises(LeaseLost, match="did not renew its lease for 45 s"):
        first.renew()
    first.release()  # no longer its own
    assert json.loads(catalog.load_table(SEGMENTS.identifier).properties[TERMS])["holder"].startswith("second ")
    second.renew()


def test_a_job_without_its_lease_stops_before_an_unguarded_change(fresh: Lake) -> None:
    catalog = open_catalog(fresh.settings)
    check_lease(catalog)  # a job without a lease may proceed
    with rewriting(catalog, "garbage collection", clock=lambda: NOON):
        check_lease(catalog)
        Lease(open_catalog(fresh.settings), "erasure").take()
        with pytest.raises(LeaseLost):
            check_lease(catalog)


def test_a_job_that_lost_the_lease_removes_no_segment_that_another_may_need(fresh: Lake) -> None:
    for ms in (1, 2):
        fresh.archive(Stream.TRIGGER, [trigger(ms, [f"V{ms}"])])
    catalog = open_catalog(fresh.settings)
    ingest(catalog, fresh.settings, run_id="run", now=at(2))
    with rewriting(catalog, "garbage collection", clock=lambda: NOON):
        Lease(open_catalog(fresh.settings), "rollback").take()
        with pytest.raises(LeaseLost):
            drop_segments(catalog, fresh.settings, now=NOON + timedelta(days=4000), dry_run=False)
    assert len(list((fresh.settings.home / "archive").rglob("*.parquet"))) == 2
    assert drop_segments(catalog, fresh.settings, now=NOON + timedelta(days=4000), dry_run=False).count == 1


def test_a_restore_that_cannot_get_the_lease_drops_no_table(fresh: Lake) -> None:
    catalog = open_catalog(fresh.settings)
    metadata = catalog.load_table(IDS.identifier).metadata_location
    (fresh.settings.home / metadata.rpartition("/home/")[2]).unlink()
    catalog = open_catalog(fresh.settings)  # as the next process does: this one knows what was in it
    with rewriting(open_catalog(fresh.settings), "compaction"), pytest.raises(LeaseHeld):
        restore(None, catalog, fresh.settings, now=NOON)  # type: ignore[arg-type]  # it does not come so far as to need Spark
    with pytest.raises(FileNotFoundError):  # it is still the lost one
        catalog.load_table(IDS.identifier)


def test_an_ingest_neither_takes_nor_waits_for_the_lease(fresh: Lake) -> None:
    fresh.archive(Stream.TRIGGER, [trigger(1, ["V1"])])
    catalog = open_catalog(fresh.settings)
    other = Lease(open_catalog(fresh.settings), "compaction")
    other.take()
    ingest(catalog, fresh.settings, run_id="run", now=at(1))
    assert [row["vin"] for row in read(catalog, IDS)] == ["V1"]
    other.renew()


def test_a_job_that_cannot_get_the_lease_exits_with_the_retry_status(
    fresh: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in variables(home=fresh.settings.home).items():
        monkeypatch.setenv(name, value)
    with rewriting(open_catalog(fresh.settings), "restore"):
        assert main(["migrate"]) == TRY_AGAIN
    assert capsys.readouterr().err.splitlines()[-1].startswith("restore (process ")
    assert main(["migrate"]) == 0
