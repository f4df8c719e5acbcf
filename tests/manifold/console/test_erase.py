"""`manifold vin erase` on a running platform: queued, recorded and archived data is gone and verified."""

import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from manifold.contracts.tables import ERASURES
from manifold.lake.catalog import open_catalog
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings
from tests.support.console import ask, manifold


def naming(folder: Path, vin: str) -> list[Path]:
    """The segments below a folder that name a vehicle."""
    return [file for file in folder.rglob("*.parquet") if vin in str(pq.read_table(file).to_pylist())]


@pytest.mark.slow
def test_a_vehicle_is_erased_and_its_neighbour_in_the_batch_is_not(platform: Settings) -> None:
    run = uuid.uuid4().hex[:8]
    gone, stays, why = f"ERASED-{run}", f"STAYS-{run}", f"case {run}"
    ask(platform, "send", gone, stays, "--data-id", f"never-{run}", "--request-id", f"task_{run}")

    refused = manifold("vin", "erase", gone, "--why", why, env=environment(platform))
    done = ask(platform, "vin", "erase", gone, "--why", why, "--yes")
    again = ask(platform, "vin", "erase", gone, "--why", why, "--yes")
    told = manifold("vin", "erase", gone, "--why", gone, "--yes", env=environment(platform))

    assert (refused.returncode, "Go on?" in refused.stderr) == (1, True)
    assert (done["proved"], done["found"], done["entries"], done["messages"]) == (True, [], 1, 1)
    assert (again["proved"], again["entries"], again["messages"]) == (True, 0, 0)
    assert (told.returncode, "must not name the vehicle" in told.stderr) == (1, True)
    assert naming(platform.home / "archive", gone) == []
    assert len(naming(platform.home / "archive", stays)) == 1
    assert ask(platform, "vin", "show", gone)["entries"] == []
    assert [entry["state"] for entry in ask(platform, "vin", "show", stays)["entries"]] == ["pending"]
    rows = open_catalog(platform).load_table(ERASURES.identifier).scan().to_arrow().to_pylist()
    assert sorted(row["state"] for row in rows if row["why"] == why) == ["begun", "begun", "erased", "erased"]
    assert gone not in str(rows)
