"""Airflow commands as forks of one process: their exit, and that of their parent."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from manifold.sandbox.platform import airflow
from manifold.settings import Settings

pytestmark = pytest.mark.slow

STARTED = """
import os, signal, sys
from manifold.sandbox.platform.airflow_commands import load, start, status_of

load(dict(os.environ))
# The last needs tables, which nobody has made.
ends = [start(arguments).wait() for arguments in (("version",), ("no-such-command",), ("pools", "list"))]
assert ends == [0, 2, 1], ends

runs = start(("api-server",))
assert status_of(runs) is None
runs.terminate()  # long before Airflow has its own way to end
assert runs.wait() == -signal.SIGTERM == status_of(runs)

for name in ("early", "late"):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(f"{name}: taken for this process's"))
    start(("scheduler",)).terminate()
"""


def test_each_command_exits_with_its_own_status_and_on_sigterm(tmp_path: Path) -> None:
    env = airflow.environment(Settings(home=tmp_path), os.environ)
    (tmp_path / "airflow").mkdir()

    done = subprocess.run([sys.executable, "-c", STARTED], env=env, capture_output=True, text=True, check=False, timeout=120)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "airflow" / "airflow.cfg").exists()
