"""The workers of the suite: after a crash the others do its tests, and the run ends."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.servers import ROOT

CRASHES = """import os
from pathlib import Path

def test_crashes_once() -> None:
    if not Path("crashed").exists():
        Path("crashed").touch()
        os._exit(1)
"""
PASSES = "import pytest\n\n@pytest.mark.parametrize('n', range(5))\ndef test_passes(n: int) -> None:\n    pass\n"


def test_the_suite_ends_after_a_worker_has_crashed(tmp_path: Path) -> None:
    for n in range(12):
        (tmp_path / f"test_{n:02}.py").write_text(CRASHES if n == 6 else PASSES)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    plugins = ("-p", "xdist", "-p", "tests.support.scheduling")
    command = [sys.executable, "-m", "pytest", *plugins, "-q", "-n", "2", "--dist", "loadscope", str(tmp_path)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)

    assert "1 failed, 56 passed" in done.stdout, done.stdout + done.stderr
    assert "crashed while running 'test_06.py::test_crashes_once'" in done.stdout
