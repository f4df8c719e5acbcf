"""A process that looks seldom for garbage."""

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


def test_at_its_end_it_does_what_was_asked_for_and_looks_through_nothing() -> None:
    assert says("") == "registered taken apart "
    assert says("from manifold.runtime.gc_tuning import collect_rarely; collect_rarely()") == "registered "
