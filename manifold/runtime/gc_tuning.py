"""How seldom a process that imports much looks for garbage: what it has imported stays, and is most of what it has."""

import atexit
import gc

OBJECTS = 100_000  # that are made, and not gone again, before Python looks through them; some 20 MB
OBJECTS_OF_PER_SERVICE = 20_000  # which must not stand still for long


def look_seldom() -> None:
    """For the rest of this process, and not at its end."""
    gc.set_threshold(OBJECTS, 20, 50)
    look_not_at_the_end()


def look_at_what_is_new() -> None:
    """For a service that has loaded everything: seldom, and at nothing of it. A look at all stops it for a tenth of a second."""
    gc.freeze()
    gc.set_threshold(OBJECTS_OF_PER_SERVICE, 20, 50)


def look_not_at_the_end() -> None:
    """Python would look through everything once more, for up to a second of CPU; the system takes all of it back by itself."""
    atexit.register(gc.freeze)  # runs last, after whatever others have registered since
