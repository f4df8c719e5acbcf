"""Recorder state that outlives its process."""

from manifold.archive.state_file import ServiceState


class RecorderState(ServiceState):
    """How far this recorder has enqueued, besides the last seq that it assigned."""

    gap_since: int | None = None  # first seq that was not handed over to a Redis; None: all were
    redis_run_id: str | None = None  # of the Redis that got everything before: with this run id, it has lost nothing
