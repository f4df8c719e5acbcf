"""The state of a recorder that outlives its process."""

from manifold.archive.state_file import ServiceState


class RecorderState(ServiceState):
    """How far this recorder has enqueued, in addition to the last seq that it has assigned."""

    gap_since: int | None = None  # first seq that was not handed over to Redis; None if every seq was
    # Run id of the Redis that got everything before the gap. A Redis with this run id has not restarted, so it has lost nothing.
    redis_run_id: str | None = None
