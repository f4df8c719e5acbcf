"""`python -m manifold.sandbox.platform.exec_with_record <file> <command …>`: records pid and start time in the file, then execs.

The command keeps pid and start time. So when a supervisor is killed, the processes that it leaves behind can be found.
"""

import os
import sys
from pathlib import Path

from manifold.sandbox.platform.processes import Record

if __name__ == "__main__":
    file, *command = sys.argv[1:]
    Record.of_this_process().write(Path(file))
    os.execvp(command[0], command)  # noqa: S606  # replacing this process is the purpose
