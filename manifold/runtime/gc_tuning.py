"""Garbage collector tuning for processes with many imports: most of their heap is imported objects, which are never freed."""

import atexit
import gc

MAX_NEW_OBJECTS = 100_000  # new objects that trigger a collection; some 20 MB
MAX_NEW_OBJECTS_IN_SERVICE = 20_000  # fewer in a service, which must not pause for long


def collect_rarely() -> None:
    """Collect rarely for the rest of this process, and skip the collection at exit."""
    gc.set_threshold(MAX_NEW_OBJECTS, 20, 50)
    skip_final_collection()


def freeze_heap() -> None:
    """Exempt all present objects from collection, and collect rarely. A service calls it when its modules are loaded.

    A full collection of the whole heap would pause the service for 0.1 s.
    """
    gc.freeze()
    gc.set_threshold(MAX_NEW_OBJECTS_IN_SERVICE, 20, 50)


def skip_final_collection() -> None:
    """Skip the collection at exit, which takes up to a second of CPU, although the OS frees the memory anyway."""
    atexit.register(gc.freeze)  # exit handlers run in reverse order: registered early, it runs late
