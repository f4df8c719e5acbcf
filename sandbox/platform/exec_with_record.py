"""`python -m sandbox.platform.exec_with_record <record> <command …>`: records the pid and start time, then executes the command.

The record is there before the program runs, so whatever a supervisor that was killed leaves behind can be found again.
"""

import os
import sys
from pathlib import Path

from sandbox.platform.processes import Record

if __name__ == "__main__":
    file, *command = sys.argv[1:]
    Record.of_this_process().write(Path(file))
    os.execvp(command[0], command)  # noqa: S606  # to become the program is the purpose
