"""No file that a run writes has a payload in the clear: tables, reports, logs, and whatever Spark puts on disk meanwhile."""

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.envelope import Stream
from contracts.tables import XRAY_PROCESSED, XRAY_RAW
from tests.pipelines.conftest import SparkLake
from tests.pipelines.signal_makers import Door
from tests.servers import ROOT

MARK = b"the words of a patient"
# So that what Spark writes can be read.
PLAIN = "".join(f"{name} false\n" for name in ("spark.shuffle.compress", "spark.shuffle.spill.compress", "spark.rdd.compress"))


@pytest.fixture
def is_small() -> bool:
    return True


class Files:
    """Every file below a folder, as often as one looks; what is gone in between is gone."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._known = folder, dict[Path, tuple[int, int]]()
        self.with_payload: set[str] = set()
        self.seen: set[str] = set()

    def look(self) -> None:
        for file in (Path(folder) / name for folder, _, names in os.walk(self._folder) for name in names):
            try:
                about = file.stat().st_size, file.stat().st_mtime_ns
                if self._known.get(file) != about:
                    self._known[file] = about
                    self._read(file)
            except OSError:
                continue

    def _read(self, file: Path) -> None:
        content = file.read_bytes()
        name = str(file.relative_to(self._folder))
        self.seen.add(name)
        if MARK in content or base64.b64encode(MARK) in content:
            self.with_payload.add(name)


@pytest.mark.slow
def test_no_file_of_a_run_on_spark_has_a_payload(spark_lake: SparkLake, tmp_path: Path) -> None:
    door = Door(spark_lake, tmp_path / "ring")
    home = spark_lake.settings.home
    (home / "conf").mkdir()
    (home / "conf" / "spark-defaults.conf").write_text(PLAIN)
    (home / "tmp").mkdir()
    spark_lake.write(Stream.XRAY_RAW, [door.raw(ms, "d", MARK, captured=ms // 2) for ms in range(1, 400)])
    spark_lake.write(Stream.XRAY_RAW, [door.refused(ms, MARK, "d", digest=str(ms // 2)) for ms in range(401, 500)], node=1)
    env = os.environ | {
        "MANIFOLD_HOME": str(home),
        "MANIFOLD_SIGNALS_KEYS_FILE": spark_lake.settings.signals_keys_file,
        "MANIFOLD_SMALL_RUN_BYTES": "0",
        "MANIFOLD_SPARK_DRIVER_MEMORY": "1g",
        "SPARK_LOCAL_DIRS": str(home / "tmp"),
        "SPARK_CONF_DIR": str(home / "conf"),
        "TMPDIR": str(home / "tmp"),
    }
    files, log = Files(home), home / "ingest.log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "console", "ingest", "--no-flush"]
        running = subprocess.Popen(command, env=env, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
        while running.poll() is None:
            files.look()
    files.look()

    assert running.returncode == 0, log.read_text()[-3000:]
    assert len(spark_lake.rows(XRAY_RAW, "seq")) == len(spark_lake.rows(XRAY_PROCESSED, "seq")) == 200
    assert files.with_payload == set()
    for kind in ("reports/", "tmp/", "ingest.log", "/xray_raw_signals/", "/quarantine/"):
        assert any(kind in name for name in files.seen), f"{kind} of {len(files.seen)} files"
