"""Settings of the queues in Redis."""

from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, Field

from manifold.settings.field import Days, DaysOrNone
from manifold.settings.field import setting as _s
from manifold.settings.shared import SharedSettings


def _empty_is_unset(value: object) -> object:
    return None if value == "" else value


class QueueSettings(SharedSettings):
    """How entries wait."""

    retention_days: Days = _s(30, "how long an entry may stay pending, and how long data is kept after it was last seen")
    compaction: Annotated[str, Field(pattern="^(off|request_id)$")] = _s(
        "off", "request_id: a newer trigger replaces an older pending one of it"
    )
    ecq_retention_days: Days = _s(
        30,
        "how long a message of a compacted queue is kept, acknowledged or not, unless a newer one takes its place",
    )
    ecq_pending_retention_days: Annotated[DaysOrNone | None, BeforeValidator(_empty_is_unset)] = _s(
        None,
        "how long a message of a compacted queue may stay pending before it expires; 0: until it is fetched;"
        " empty: as long as ecq_retention_days",
    )
    wake_shards: Annotated[int, Field(ge=1, le=256)] = _s(
        4, "streams over which wake-ups and deadlines are spread; the same for every process"
    )

    @property
    def ecq_pending_retention(self) -> timedelta | None:
        """How long a message of a compacted queue may stay pending; None: until it is fetched."""
        days = self.ecq_pending_retention_days
        if days is None:  # not set
            days = self.ecq_retention_days
        return timedelta(days=days) if days else None  # 0 days: unlimited
