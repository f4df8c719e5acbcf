"""`python -m tests.stores.stages "garbage --dry-run" compact …`: stages one after the other, in one process with one JVM.

Each is what `python -m pipelines <stage>` runs; the results are the lines of standard output. The first that is not done ends it.
"""

import shlex
import sys

from pipelines.cli import main


def run(stages: list[str]) -> int:
    """The exit status of the last stage."""
    for stage in stages:
        status = main(shlex.split(stage))
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
