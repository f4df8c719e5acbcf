"""The list of a proposed campaign is judged before it is recorded: with a real recorder, broker, lake and Spark."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from manifold.contracts import campaigns as r
from manifold.contracts.envelope import Stream
from manifold.contracts.errors import Permanent
from manifold.contracts.seq import datetime_of, first_seq_at
from manifold.contracts.tables import IDS, OUTCOMES
from manifold.lake.catalog import ensure_tables
from manifold.lake.reports import open_reports, run_page
from manifold.messaging.publisher import Publisher
from manifold.settings import Settings
from pipelines.campaigns.targets import record_targets
from tests.manifold.campaigns.plans import NOW, document, fleet_here, proposed, vins
from tests.manifold.recorder.harness import Harness, running_harness
from tests.pipelines.conftest import SparkLake
from tests.support.campaign_rows import write
from tests.support.lake_rows import append, append_payloads

pytestmark = pytest.mark.slow
ROWS = 60_000  # more than one order takes
SEQ = first_seq_at(datetime(2026, 11, 1, tzinfo=UTC))


@dataclass(slots=True)
class Place:
    """A lake, and the recorder that receives the orders."""

    lake: SparkLake
    harness: Harness
    settings: Settings

    def propose(self, campaign: str, /, **targets: Any) -> None:
        async def order() -> None:
            async with Publisher(self.settings, self.settings.mqtt_username_campaigns) as publisher:
                plan = document(campaign=campaign) | {"targets": targets}
                await publisher.order(r.Propose(campaign, "anna", plan=plan))

        asyncio.run(order())

    def write(self, name: str, *rows: str) -> None:
        file = Path(self.harness.folder, "home", "archive", "_lists", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(("vin,zone,wave", *rows)))

    def record(self, campaign: str, run_id: str, by: str = "ben") -> dict[str, Any]:
        return record_targets(self.settings, self.lake.spark, self.lake.catalog, campaign, by=by, run_id=run_id)

    def lists(self, campaign: str) -> list[r.AddTargets]:
        """The recorded parts of a list."""
        self.harness.flush()
        found = [r.decode(envelope.payload) for envelope in self.harness.archived(Stream.CAMPAIGN)]
        return [order for order in found if isinstance(order, r.AddTargets) and order.campaign == campaign]

    def targets(self, campaign: str) -> list[r.Target]:
        """The recorded list."""
        return [target for part in self.lists(campaign) for target in part.targets]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """One recorder; tests isolate themselves by campaigns."""
    with running_harness(tmp_path_factory.mktemp("place")) as running:
        yield running


@pytest.fixture
def place(spark_lake: SparkLake, harness: Harness) -> Place:
    """The recorder beside a lake without tables."""
    more: dict[str, Any] = {"archive_url": f"file://{harness.folder}/home/archive", "recorder_port": harness.running.port}
    more["mqtt_port"] = harness.broker.port
    return Place(spark_lake, harness, spark_lake.settings.model_copy(update=more))


def test_a_list_is_recorded_only_if_it_passes_and_only_once(place: Place) -> None:
    place.propose("maps-48", file="fleet.csv")
    with pytest.raises(Permanent, match=r"_lists/fleet.csv is not there; put the list there"):
        place.record("maps-48", "run-0")
    good = [f"VIN{number:06},Europe/Berlin," for number in range(ROWS)]
    place.write("fleet.csv", *good, "VIN000007,Asia/Tokyo,", "A#B,,", "VIN-A,Mars/Base,", "VIN-B,,no such wave", ",UTC,")

    with pytest.raises(Permanent) as refused:
        place.record("maps-48", "run-1")

    told = str(refused.value)
    for rule in ("vin_is_unique", "vin_is_a_topic_level", "zone_is_known", "wave_is_in_the_plan", "columns_are_present"):
        assert rule in told
    assert "Mars/Base" in told
    reports = open_reports(place.settings)
    assert "zone_is_known" in (reports.read(run_page("run-1")) or b"").decode()
    assert place.lists("maps-48") == []

    place.write("fleet.csv", *reversed(good))
    done = place.record("maps-48", "run-2")
    again = place.record("maps-48", "run-2")

    assert (done["targets"], done["recorded"], again["recorded"]) == (ROWS, 2, 0)
    first, second = place.lists("maps-48")
    assert (first.by, first.more, second.more) == ("airflow/ben", True, False)
    assert (len(first.targets), len(second.targets)) == (50_000, 10_000)
    assert first.targets[0] == r.Target("VIN000000", "Europe/Berlin", None)
    assert reports.has(run_page("run-2"))


def test_a_campaign_that_waits_for_no_list_gets_none(place: Place) -> None:
    place.propose("maps-49", vins=["VIN-1"])

    assert place.record("maps-49", "run-3")["recorded"] == 0
    with pytest.raises(Permanent, match="'maps-50' waits for no list"):
        place.record("maps-50", "run-4")
    with pytest.raises(Permanent, match="no user triggered"):
        place.record("maps-49", "run-5", by="")


def test_a_list_may_be_published_data(place: Place) -> None:
    place.propose("maps-51", data="list-51")
    with pytest.raises(Permanent, match=r"the lake has no data 'list-51'; publish the list, and trigger this after ingest_arch"):
        place.record("maps-51", "run-6")
    ensure_tables(place.lake.catalog)
    content = b"wave,vin\n,VIN-B\nrest,VIN-A\n"
    append_payloads(place.lake.catalog, {"list-51": content, "image-51": b"\x00\xff"}, at=datetime.now(UTC))

    with pytest.raises(Permanent, match="wave_is_in_the_plan"):  # this plan has one wave, of another name
        place.record("maps-51", "run-7")
    place.propose("maps-52", data="image-51")
    with pytest.raises(Permanent, match=r"image-51 is not a list \(.*\); write CSV with a header, or Parquet, with a column vin"):
        place.record("maps-52", "run-8")

    append_payloads(place.lake.catalog, {"list-53": content.replace(b"rest", b"")}, at=datetime.now(UTC))
    place.propose("maps-53", data="list-53")
    assert place.record("maps-53", "run-9")["targets"] == 2
    assert place.targets("maps-53") == [r.Target("VIN-A"), r.Target("VIN-B")]


def test_a_list_may_be_how_a_batch_ended(place: Place) -> None:
    place.propose("maps-54", batch="task_1", ended=["failed", "expired"])
    with pytest.raises(Permanent, match="the lake has no batch 'task_1'; trigger this after ingest_archives"):
        place.record("maps-54", "run-10")
    ensure_tables(place.lake.catalog)
    with pytest.raises(Permanent, match="the lake has no batch 'task_1'"):
        place.record("maps-54", "run-11")
    entries = [(vin, SEQ, "task_1") for vin in ("VIN-D", "VIN-E", "VIN-F", "VIN-L", "VIN-O", "VIN-W")]
    entries += [(vin, SEQ + 1, "task_2") for vin in ("VIN-E", "VIN-O")]
    append(place.lake.catalog, IDS, [_entry(*entry) for entry in entries])
    ends = [("VIN-D", SEQ, "delivered"), ("VIN-E", SEQ, "expired"), ("VIN-E", SEQ + 1, "delivered"), ("VIN-F", SEQ, "failed")]
    ends += [("VIN-O", SEQ, "delivered"), ("VIN-O", SEQ + 1, "failed"), ("VIN-W", SEQ, "withdrawn")]
    ends += [("VIN-L", SEQ, "withdrawn"), ("VIN-L", SEQ, "delivered")]
    append(place.lake.catalog, OUTCOMES, [_end(*end) for end in ends])

    assert place.record("maps-54", "run-12")["targets"] == 2
    assert place.targets("maps-54") == [r.Target("VIN-E"), r.Target("VIN-F")]
    place.propose("maps-55", batch="task_1", ended=["withdrawn"])
    place.record("maps-55", "run-13")
    assert place.targets("maps-55") == [r.Target("VIN-W")], "the other one got it after all"
    place.propose("maps-56", batch="task_1", ended=["superseded"])
    with pytest.raises(Permanent, match=r"the list of maps-56 has 0 rows"):
        place.record("maps-56", "run-14")


def test_a_list_may_be_how_a_campaign_ended(place: Place) -> None:
    place.propose("maps-57", campaign="maps-47", ended=["failed", "expired"])
    with pytest.raises(Permanent, match="the lake has no record of campaign 'maps-47'"):
        place.record("maps-57", "run-15")
    ensure_tables(place.lake.catalog)
    failing, away = vins(9)[4], "VIN-away"
    fleet = fleet_here(9, failing=frozenset({failing}))
    plan = document(targets={"file": "fleet.csv"}, ends="2026-12-02T12:00:00Z")
    world = proposed(plan, fleet, [r.Target(vin, "Asia/Tokyo") for vin in (*vins(9), away)])
    world.run(NOW + 3 * 86_400_000)
    write(place.lake.catalog, world.facts)

    place.record("maps-57", "run-16")
    assert place.targets("maps-57") == [r.Target(away, "Asia/Tokyo"), r.Target(failing, "Asia/Tokyo")]


def _entry(vin: str, seq: int, batch: str) -> dict[str, Any]:
    return {"vin": vin, "ts": datetime_of(seq), "request_id": batch, "seq": seq, "data_id": "d", "applied": True}


def _end(vin: str, seq: int, outcome: str) -> dict[str, Any]:
    at = datetime_of(seq)
    return {"vin": vin, "seq": seq, "outcome": outcome, "accepted_at": at, "ended_at": at + timedelta(seconds=1)}
