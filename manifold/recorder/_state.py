"""Recorder state that outlives its process."""

from manifold.archive.state_file import ServiceState


class RecorderState(ServiceState):
    """How far this recorder has enqueued, besides the last seq that it assigned."""

    gap_since: int | None = None  # first seq that was not handed over; earlier ones were, to some Redis
    redis_run_id: str | None = None  # of the Redis that got the earlier ones: it has lost nothing
