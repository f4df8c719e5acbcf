"""The short form of `python -m tests.faults.lake`."""

from pathlib import Path

from tests.faults.lake import play
from tests.pipelines.lakes import new_lake


def test_concurrent_jobs_killed_and_paused_leave_a_lake_equal_to_its_archive(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    happened = [play(lake, seed) for seed in range(3)]
    assert sum(one.get("killed", 0) for one in happened) > 2
