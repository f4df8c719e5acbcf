"""A process with infrequent garbage collection."""

import subprocess
import sys

CYCLE = """
import atexit, sys
class Told:
    def __del__(self): sys.stdout.write("taken apart ")
def written(): sys.stdout.write("registered ")
{first}
atexit.register(written)
told = Told()
told.itself = told
del told
"""


def says(first: str) -> str:
    return subprocess.run([sys.executable, "-c", CYCLE.format(first=first)], capture_output=True, text=True, check=True).stdout


def test_exit_handlers_run_without_a_final_collection() -> None:
    assert says("") == "registered taken apart "
    assert says("from manifold.runtime.gc_tuning import collect_rarely; collect_rarely()") == "registered "
