"""An interrupt while a job packs commands ends the job as interrupted."""

import subprocess
import sys

from tests.support.servers import ROOT

PACKS_UNTIL_INTERRUPTED = """
import signal
from manifold.queues._drivers import _pack

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
command = ("ZADD", "key", *range(1_000_000), *map(float, range(100_000)))
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    while True:
        _pack(command)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_while_packing_commands_interrupts_without_a_crash() -> None:
    ended = subprocess.run([sys.executable, "-c", PACKS_UNTIL_INTERRUPTED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "interrupted\n"), ended.stderr
