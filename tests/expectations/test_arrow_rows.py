"""Queries over rows in memory, in processes that fork."""

import subprocess
import sys

FORKS = """
import os, sys
import pyarrow as pa
from expectations._arrow_rows import ask
rows = pa.table({"n": [1, 2]})
counted = lambda: ask("SELECT count(*) AS n FROM rows", rows=rows)["n"].to_pylist()
assert counted() == [2]
child = os.fork()
assert counted() == [2]
sys.exit(0 if child == 0 else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_that_was_forked_asks_and_ends() -> None:
    assert subprocess.run([sys.executable, "-c", FORKS], timeout=60, check=False).returncode == 0
