"""`manifold fleet`: vehicles by presence, and entries by state."""

import asyncio
from datetime import datetime

from manifold.console._output import AsJson, handle_errors, out, print_json, settings_or_fail, table
from manifold.console._queue_stats import Fresh, counts_and_age, print_age, queue_stats_of
from manifold.contracts.seq import datetime_of
from manifold.queues import QueueStats, connect
from manifold.settings import Settings


@handle_errors
def fleet(fresh: Fresh = False, as_json: AsJson = False) -> None:
    """Count vehicles by presence, entries and messages by state; as of the last queue statistics."""
    stats = asyncio.run(_read_stats(settings_or_fail(), fresh))
    oldest = _first_accepted_at(stats.oldest)
    ecq_oldest = _first_accepted_at(stats.ecq_oldest)
    if as_json:
        print_json({**counts_and_age(stats), "oldest_at": oldest, "ecq_oldest_at": ecq_oldest})
        return
    rows = [
        ("vehicles known", stats.known),
        ("here and listening", stats.present),
        ("here and not listening", stats.unsubscribed),
        ("away", stats.known - stats.present - stats.unsubscribed),
        ("with something waiting", stats.queues),
        ("entries pending", stats.pending),
        ("entries in flight", stats.in_flight),
        ("entries parked", stats.parked),
        ("oldest accepted at", oldest),
        ("clients with something waiting in a compacted queue", stats.ecq_queues),
        ("messages of compacted queues, live", stats.ecq_live),
        ("of them pending", stats.ecq_pending),
        ("of them in flight", stats.ecq_in_flight),
        ("oldest pending message of a compacted queue accepted at", ecq_oldest),
    ]
    out.print(table("", ("what", "now"), rows))
    print_age(stats)


def _first_accepted_at(queues: list[tuple[str, int]]) -> datetime | None:
    """When the oldest entry of the first of these queues was accepted; None without queues.

    Each queue is a pair of its owner and the seq of its oldest entry.
    """
    if not queues:
        return None
    _, oldest_seq = queues[0]
    return datetime_of(oldest_seq)


async def _read_stats(settings: Settings, fresh: bool) -> QueueStats:
    async with connect(settings.redis) as redis:
        return await queue_stats_of(settings, redis, fresh=fresh)
