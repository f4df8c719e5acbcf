"""Forks Spark's Python workers like `pyspark.daemon`, but faster: it avoids archives on the path, and imports libraries first.

By default, workers find PySpark in a zip file on `sys.path`, which also contains Spark's largest jar. Before each task, PySpark
calls `importlib.invalidate_caches`. Python 3.11 then reads the directory of each archive again, once for each package in it,
which takes a third of a second per task. If the same libraries are installed as plain files, this daemon uses those instead.

Libraries that every task needs are imported once, before the workers are forked.
"""

import importlib.util
import sys

LIBRARIES = ("pyspark", "py4j")  # libraries that Spark puts on the path as archives
ARCHIVES = (".zip", ".jar")


def prefer_plain_files() -> None:
    """Remove archives from `sys.path` if the libraries can be found without them."""
    original_path = list(sys.path)
    sys.path[:] = [entry for entry in original_path if not entry.endswith(ARCHIVES)]
    if any(importlib.util.find_spec(library) is None for library in LIBRARIES):
        sys.path[:] = original_path  # a library is only in an archive
        return
    # `importlib.invalidate_caches` goes through this cache, and so would still read archives that have left the path.
    cached_archives = [entry for entry in sys.path_importer_cache if any(suffix in entry for suffix in ARCHIVES)]
    for entry in cached_archives:
        del sys.path_importer_cache[entry]


if __name__ == "__main__":
    prefer_plain_files()

    from pyspark import daemon, worker

    from manifold.archive import parsing, store

    del parsing, store, worker  # imported so that forked workers share them
    daemon.manager()  # type: ignore[no-untyped-call]  # pyspark has no types here
