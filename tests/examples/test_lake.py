"""The examples that read the lake, with PyIceberg and with Spark."""

import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from manifold.contracts.seq import datetime_of, first_seq_at
from manifold.contracts.tables import IDS, OUTCOMES
from manifold.settings import Settings
from tests.examples.running import EXAMPLES, run, run_python
from tests.support.lake_rows import append, new_lake
from tests.support.servers import ROOT

VIN = "1HGCM82633A004352"
SEQ = first_seq_at(datetime(2026, 3, 1, 12, tzinfo=UTC))
AT = datetime_of(SEQ)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Catalog address and warehouse of a lake with three messages of one vehicle: one delivered, one failed."""
    settings = Settings(home=tmp_path_factory.mktemp("lake"))
    catalog = new_lake(settings)
    entries = [
        {"vin": vin, "ts": AT, "request_id": f"task-{n}", "seq": SEQ + n, "data_id": "map-1", "applied": True}
        for n, vin in enumerate((VIN, VIN, VIN, "ANOTHER"))
    ]
    ends = [
        {
            "vin": VIN,
            "seq": SEQ + n,
            "outcome": outcome,
            "accepted_at": AT,
            "acknowledged_at": acknowledged,
            "ended_at": AT,
            "attempts": 1,
        }
        for n, outcome, acknowledged in ((0, "delivered", AT), (1, "failed", None))
    ]
    append(catalog, IDS, entries)
    append(catalog, OUTCOMES, ends)
    return settings.catalog, settings.warehouse_url


def test_pyiceberg_lists_the_messages_of_a_vehicle_with_outcomes(lake: tuple[str, str], tmp_path: Path) -> None:
    assert run_python("read_lake.py", *lake, VIN, folder=tmp_path) == [
        f"{SEQ} task-0 map-1 delivered {AT}",
        f"{SEQ + 1} task-1 map-1 failed -",
        f"{SEQ + 2} task-2 map-1 pending -",
    ]


@pytest.mark.slow
def test_spark_counts_outcomes_per_day(lake: tuple[str, str], tmp_path: Path) -> None:
    submit = Path(sys.executable).with_name("spark-submit")
    local = {"SPARK_LOCAL_IP": "127.0.0.1"}
    done = run(
        submit, "--driver-class-path", f"{ROOT}/.tools/jars/*", EXAMPLES / "read_lake_spark.py", *lake, folder=tmp_path, env=local
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2026-03-01 delivered 1", "2026-03-01 failed 1", "2026-03-01 pending 2"]
