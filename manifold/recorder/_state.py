"""The facts of a recorder that must outlive its process."""

from manifold.archive.state_file import DoorState


class RecorderState(DoorState):
    """How far it has handed over, beside the last seq that it gave."""

    gap_since: int | None = None  # first seq that was not handed over; what came before it was, to some Redis
    redis_run_id: str | None = None  # of the Redis to which it was: that one has lost nothing
