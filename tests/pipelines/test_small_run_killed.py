"""A run without Spark as a process of its own, killed between the files that it has written and its commit, wherever that is."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from manifold.contracts.envelope import Stream
from manifold.contracts.tables import DATA, IDS, META, OUTCOMES, QUARANTINE, SEGMENTS, Table
from manifold.lake.catalog import open_catalog
from pipelines.ingest.publish import is_published
from pipelines.maintenance.check import disagreements
from tests.pipelines.lakes import Lake, new_lake
from tests.pipelines.makers import at, data, outcome, trigger
from tests.pipelines.plain import read
from tests.pipelines.processes import BOUND_S, StageProcess, a_stage, data_files, known_files, never_committed
from tests.support.servers import free_port, wait_until

pytestmark = pytest.mark.slow

RUN_ID = "small"
SMALL = ("ingest", "--run-id", RUN_ID, "--no-flush", "--without-spark", "--to-the-end")
# A run's first commit to a table makes its branch there, the second one brings its rows, the third one moves main.
ROWS, MAIN = 2, 3


@pytest.fixture
def recorded(tmp_path: Path) -> Lake:
    """An empty lake, and an archive with a message of each kind."""
    lake = new_lake(tmp_path)
    lake.archive(Stream.TRIGGER, [trigger(1, ["V1", "V2"]), trigger(2, ["V1", 7])])
    lake.archive(Stream.DATA, [data(3, "d1", b"one"), data(4, "d1", b"one")])
    lake.archive(Stream.OUTCOME, [outcome(5, "V1", 1)])
    return lake


@pytest.mark.parametrize(
    ("table", "commit", "counts"),
    [
        pytest.param(META, ROWS, False, id="their index"),
        pytest.param(IDS, ROWS, False, id="entries"),
        pytest.param(SEGMENTS, MAIN, False, id="the commit by which it counts"),
        pytest.param(DATA, MAIN, True, id="the first main after that"),
    ],
)
def test_it_is_done_again_and_all_is_in_once(recorded: Lake, table: Table, commit: int, counts: bool) -> None:
    settings = recorded.settings
    catalog = open_catalog(settings)
    with never_committed(settings, table, commit) as staged, small_run(recorded) as killed:

        def has_come() -> bool:
            assert killed.process.poll() is None, killed.said()
            return any(staged.parent.glob(staged.name))

        wait_until(has_come, within_s=BOUND_S, what=f"commit {commit} to {table.name}; log {killed.log}")
        killed.kill()
    if commit == ROWS:
        assert data_files(settings, table) - known_files(catalog, table), "files that no commit has"
    assert is_published(catalog, RUN_ID) is counts

    with small_run(recorded) as again:
        again.result()
    assert sorted(row["vin"] for row in read(catalog, IDS)) == ["V1", "V2"]
    assert [(row["data_id"], row["payload"]) for row in read(catalog, DATA)] == [("d1", b"one")]
    assert [row["times_seen"] for row in read(catalog, META)] == [2]
    assert [row["vin"] for row in read(catalog, OUTCOMES)] == ["V1"]
    assert len(read(catalog, QUARANTINE)) == 1
    assert len(read(catalog, SEGMENTS)) == 3
    assert disagreements(catalog, settings, now=at(60_000))[0] == []


@contextmanager
def small_run(lake: Lake) -> Iterator[StageProcess]:
    """Without a Redis, whose part comes after all this."""
    with a_stage(lake.settings, *SMALL, redis_port=free_port()) as stage:
        yield stage
