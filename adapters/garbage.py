"""How seldom a process that imports much looks for garbage: what it has imported stays, and is most of what it has."""

import atexit
import gc

OBJECTS = 100_000  # that are made, and not gone again, before Python looks through them; some 20 MB


def look_seldom() -> None:
    """For the rest of this process, and not at its end."""
    gc.set_threshold(OBJECTS, 20, 50)
    look_not_at_the_end()


def look_not_at_the_end() -> None:
    """Python would look through everything once more, for up to a second of CPU; the system takes all of it back by itself."""
    atexit.register(gc.freeze)  # runs last, after whatever others have registered since
