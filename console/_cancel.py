"""Take a batch back: every entry of it that has not ended, or those of some of its vehicles."""

import time
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice

from redis import Redis

from console._lives import Lives
from contracts.errors import Permanent
from contracts.lives import Life
from contracts.outcomes import Outcome, OutcomeRecord, State
from contracts.settings import Settings
from queues import Loader, Policy

AT_ONCE = 5000  # entries that end before their outcomes are recorded
REASON = "cancelled by manifold batch cancel"


def cancel(settings: Settings, redis: Redis, request_id: str, vins: Collection[str]) -> Counter[str]:
    """Cancel the entries of `vins` (none: of all vehicles) in every trigger with this request_id.

    Returns how many entries stand how afterwards: `cancelled`, `in flight` (they end cancelled unless the vehicle acknowledges
    them), or as they had ended before. To be repeated where it was broken off: what was cancelled is then recorded again.

    Raises:
        Permanent: no trigger has this request_id, or none of them names one of `vins`.
        Retryable: the recorder cannot be asked for what it recorded last.
    """
    lives = Lives(settings, redis).of_batch_recorded(request_id)
    if not lives:
        raise Permanent(f"no trigger had the request_id {request_id!r}; look it up with manifold vin show <VIN>")
    if strangers := set(vins) - {life.vin for life in lives}:
        raise Permanent(f"VIN {min(strangers)!r} is in no batch of {request_id!r}; name vehicles of the batch")
    meant = [life for life in lives if not vins or life.vin in vins]
    standing = Counter(life.state for life in meant if not life.is_open)
    waiting = iter([life for life in meant if life.is_open])
    loader, now_ms = Loader(redis, Policy.of(settings)), time.time_ns() // 1_000_000
    while some := list(islice(waiting, AT_ONCE)):
        cancelled = []
        for owner, seq, outcome in loader.end(_by_owner(some), Outcome.CANCELLED, now_ms):
            standing[State.IN_FLIGHT if outcome is None else outcome] += 1
            if outcome is Outcome.CANCELLED:
                cancelled.append(OutcomeRecord(owner, seq, outcome, now_ms, reason=REASON))
        loader.add_outcomes(cancelled)
    return standing


def _by_owner(lives: list[Life]) -> Iterator[tuple[str, list[int]]]:
    owners: dict[str, list[int]] = {}
    for life in lives:
        owners.setdefault(life.vin, []).append(life.seq)
    yield from owners.items()
