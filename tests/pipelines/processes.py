"""Stages as separate processes, and how a test pauses one between its written files and its commit.

The embedded catalog is one SQLite file. While the test holds its write lock, everybody may read, and a commit waits: Spark's for
30 seconds, not counting time in which the process is stopped.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog

from manifold.contracts.tables import Table
from manifold.settings import Settings
from tests.support.platforms import variables
from tests.support.servers import ROOT, wait_until

BOUND_S = 120


@dataclass(frozen=True, slots=True)
class StageProcess:
    """`python -m pipelines <stage>` with its children, in its own process group."""

    process: subprocess.Popen[bytes]
    log: Path
    answer: Path

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the stage and its Spark."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kill it (`kill -9`)."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        """Its output so far."""
        return self.log.read_text()

    def result(self) -> dict[str, Any]:
        """Its result, once it is done."""
        assert self.process.wait(BOUND_S) == 0, self.said()
        result: dict[str, Any] = json.loads(self.answer.read_text())
        return result


@contextmanager
def a_stage(settings: Settings, *arguments: str, **more: object) -> Iterator[StageProcess]:
    """A running stage, killed at the end of the block if still running. `more` are further settings."""
    given = {"home": settings.home, "spark_driver_memory": "1g"} | more
    env = os.environ | variables(**given)
    log = settings.home / "logs" / f"{arguments[0]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    answer = log.with_suffix(".json")
    command = [sys.executable, "-m", "pipelines", *arguments, "--result", str(answer)]
    with log.open("ab") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=out, start_new_session=True)
    stage = StageProcess(process, log, answer)
    try:
        yield stage
    finally:
        if process.poll() is None:
            stage.kill()


@contextmanager
def locked(settings: Settings) -> Iterator[None]:
    """Block commits to the embedded catalog during the block."""
    connection = sqlite3.connect(settings.home / "lake" / "catalog.db", isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
    finally:
        connection.close()


def commits_begun(settings: Settings, table: Table) -> set[Path]:
    """The metadata files of a table: a commit writes one before it calls the catalog."""
    return set((_folder(settings, table) / "metadata").glob("*.metadata.json"))


def waits_to_commit(stage: StageProcess, settings: Settings, table: Table, before: set[Path]) -> None:
    """Wait until the stage has one more commit under way than `before`; nothing else may write meanwhile."""

    def has_begun() -> bool:
        assert stage.process.poll() is None, stage.said()
        return commits_begun(settings, table) > before

    wait_until(has_begun, within_s=BOUND_S, what=f"a commit to {table.name}; log {stage.log}")


def data_files(settings: Settings, table: Table) -> set[Path]:
    """The data files in the table's folder, referenced or not."""
    return set((_folder(settings, table) / "data").rglob("*.parquet"))


def known_files(catalog: Catalog, table: Table) -> set[Path]:
    """The data files referenced by any snapshot of the table on any branch."""
    loaded = catalog.load_table(table.identifier)
    manifests = [manifest for snapshot in loaded.snapshots() for manifest in snapshot.manifests(loaded.io)]
    files = [entry.data_file.file_path for manifest in manifests for entry in manifest.fetch_manifest_entry(loaded.io)]
    return {Path(file.removeprefix("file://").removeprefix("file:")) for file in files}


def _folder(settings: Settings, table: Table) -> Path:
    return settings.home / "lake" / "warehouse" / table.identifier.replace(".", "/")
