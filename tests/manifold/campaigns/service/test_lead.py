"""A campaigner that may not write in its own folder ends with what to do about it."""

import subprocess
import sys
from pathlib import Path

from tests.support.servers import ROOT, free_port


def test_a_campaigner_that_cannot_write_its_folder_says_so_and_ends(tmp_path: Path) -> None:
    (tmp_path / "campaigner").write_text("a file where the folder belongs")
    env = {"MANIFOLD_HOME": str(tmp_path), "MANIFOLD_CAMPAIGNER_PORT": str(free_port()), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "manifold.campaigns"]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert f"{tmp_path}/campaigner cannot be written" in done.stderr
    assert "let the user of this process write there" in done.stderr
    assert "Traceback" not in done.stderr
