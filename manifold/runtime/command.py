"""Output of a small command: one line on stdout, or an error message on stderr."""

import sys
from collections.abc import Callable

from manifold.contracts.errors import ManifoldError


def run_command(work: Callable[[], str]) -> int:
    """Call `work` and print the line that it returns.

    Returns:
        The exit status: 0, or 1 after a ManifoldError, which is written to stderr.
    """
    try:
        line = work()
    except ManifoldError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    sys.stdout.write(f"{line}\n")
    return 0
