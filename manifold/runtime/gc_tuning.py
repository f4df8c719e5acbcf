"""Garbage collector tuning for import-heavy processes: imported objects are permanent, and most of the heap."""

import atexit
import gc

OBJECTS = 100_000  # net allocations between two collections; some 20 MB
OBJECTS_OF_PER_SERVICE = 20_000  # for services, which must not pause for long


def collect_rarely() -> None:
    """Collect rarely for the rest of this process, and not at exit."""
    gc.set_threshold(OBJECTS, 20, 50)
    skip_final_collection()


def freeze_heap() -> None:
    """For a service that is fully loaded: freeze the heap and collect rarely. A full collection would take 0.1 s."""
    gc.freeze()
    gc.set_threshold(OBJECTS_OF_PER_SERVICE, 20, 50)


def skip_final_collection() -> None:
    """Skip the final collection at exit, which takes up to a second of CPU; the OS frees the memory anyway."""
    atexit.register(gc.freeze)  # registered first, so it runs last
