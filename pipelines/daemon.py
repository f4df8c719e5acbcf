"""What forks Spark's Python workers: `pyspark.daemon`, but workers start warm and take tasks at once.

Workers find pyspark in a zip file, and before each task pyspark calls `importlib.invalidate_caches`, for which Python 3.11 reads
the whole directory of that zip again, once for each package in it: a third of a second a task. Where the same pyspark is
installed as plain files, it is taken from there. And what every task needs is imported once, before the workers are forked.
"""

import importlib.util
import sys

ZIP = "pyspark.zip"


def prefer_plain_files() -> None:
    """Take the zip off the path, if pyspark is to be found without it."""
    before = list(sys.path)
    sys.path[:] = [entry for entry in before if not entry.endswith(ZIP)]
    if importlib.util.find_spec("pyspark") is None:
        sys.path[:] = before


if __name__ == "__main__":
    prefer_plain_files()

    from pyspark import daemon, worker

    from pipelines import archive, parsing

    del archive, parsing, worker  # imported to be in memory when the workers are forked
    daemon.manager()  # type: ignore[no-untyped-call]  # pyspark has no types here
