"""`python -m manifold.sandbox.platform.exec_with_record <record> <command …>`: records pid and start time, then execs it.

The record is written before the program runs, so that processes left behind by a killed supervisor can be found.
"""

import os
import sys
from pathlib import Path

from manifold.sandbox.platform.processes import Record

if __name__ == "__main__":
    file, *command = sys.argv[1:]
    Record.of_this_process().write(Path(file))
    os.execvp(command[0], command)  # noqa: S606  # replacing this process is the purpose
