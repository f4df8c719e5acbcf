"""The list of a proposed campaign is judged before it is recorded: with a real recorder, broker, lake and Spark."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from manifold.contracts import campaigns as r
from manifold.contracts.envelope import Stream
from manifold.contracts.errors import Permanent
from manifold.lake.reports import open_reports, run_page
from manifold.messaging.publisher import Publisher
from manifold.settings import Settings
from pipelines.campaigns.targets import record_targets
from tests.manifold.campaigns.plans import document
from tests.manifold.recorder.harness import Harness, running_harness
from tests.pipelines.conftest import SparkLake

pytestmark = pytest.mark.slow
ROWS = 60_000  # more than one order takes


@dataclass(slots=True)
class Place:
    """A lake, and the recorder that receives the orders."""

    lake: SparkLake
    harness: Harness
    settings: Settings

    def propose(self, campaign: str, **targets: Any) -> None:
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


@pytest.fixture
def place(spark_lake: SparkLake, tmp_path: Path) -> Iterator[Place]:
    with running_harness(tmp_path / "place") as harness:
        more = {"archive_url": f"file://{harness.folder}/home/archive", "recorder_port": harness.running.port}
        more["mqtt_port"] = harness.broker.port
        yield Place(spark_lake, harness, spark_lake.settings.model_copy(update=more))


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
