"""Forks Spark's Python workers: `pyspark.daemon`, with libraries imported beforehand.

Workers find PySpark in a zip file, beside Spark's largest jar, and before each task PySpark calls
`importlib.invalidate_caches`, for which Python 3.11 reads the whole directory of each archive again, once per package in it:
a third of a second per task. So if the same libraries are installed as plain files, those are used. Libraries that every task
needs are imported once, before the workers are forked.
"""

import importlib.util
import sys

LIBRARIES = ("pyspark", "py4j")  # put on the path by Spark, as archives
ARCHIVES = (".zip", ".jar")


def prefer_plain_files() -> None:
    """Remove archives from the path, if the libraries can be found without them."""
    before = list(sys.path)
    sys.path[:] = [entry for entry in before if not entry.endswith(ARCHIVES)]
    if any(importlib.util.find_spec(library) is None for library in LIBRARIES):
        sys.path[:] = before
        return
    for entry in [entry for entry in sys.path_importer_cache if any(kind in entry for kind in ARCHIVES)]:
        del sys.path_importer_cache[entry]


if __name__ == "__main__":
    prefer_plain_files()

    from pyspark import daemon, worker

    from manifold.archive import parsing, store

    del parsing, store, worker  # imported so that forked workers share them
    daemon.manager()  # type: ignore[no-untyped-call]  # pyspark has no types here
