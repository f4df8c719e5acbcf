"""Loads the brakes of campaigns into Redis, before any entry that they hold back."""

from datetime import datetime, timedelta

from redis import Redis

from manifold.archive.brakes import brakings_of
from manifold.archive.recorded import RecordedSegments
from manifold.archive.store import Archive
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import first_seq_at
from manifold.queues import Loader, Policy
from manifold.settings import Settings


def load_brakes(settings: Settings, redis: Redis, now: datetime) -> None:
    """Set every brake that an order in the archive set within the retention of entries.

    A brake stops the delivery of a campaign's pending entries. Older orders are not needed, because the entries that they held
    back are not pending any more. A brake is set even if a later order took it off, because only orders that set brakes are read;
    the campaigner then takes it off. Entries that are withdrawn until then are released again.

    Raises:
        OSError: the archive cannot be read.
        redis.RedisError: Redis is unavailable or refuses.
    """
    archive = RecordedSegments(Archive(settings.archive, settings.s3))
    since = first_seq_at(now - timedelta(days=settings.retention_days))
    orders = archive.recorded_since(Stream.CAMPAIGN, since)
    Loader(redis, Policy.of(settings)).load_brakes(brakings_of(orders))
