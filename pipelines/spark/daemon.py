"""The process that forks Spark's Python workers: `pyspark.daemon` with the libraries loaded beforehand.

Workers find pyspark in a zip file, with Spark's largest jar beside it, and before each task pyspark calls
`importlib.invalidate_caches`, for which Python 3.11 reads the whole directory of each of them again, once for each package in
it: a third of a second a task. Where the same libraries are installed as plain files, they are taken from there. And what every
task needs is imported once, before the workers are forked.
"""

import importlib.util
import sys

LIBRARIES = ("pyspark", "py4j")  # what Spark itself puts on the path in archives
ARCHIVES = (".zip", ".jar")


def prefer_plain_files() -> None:
    """Take archives off the path, if the libraries are to be found without them."""
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

    del parsing, store, worker  # imported to be in memory when the workers are forked
    daemon.manager()  # type: ignore[no-untyped-call]  # pyspark has no types here
