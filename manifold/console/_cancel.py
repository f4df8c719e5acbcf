"""Cancels a batch: every open entry, of all vehicles or some, trigger by trigger, in slices."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice

from redis import Redis

from manifold.contracts.errors import Permanent
from manifold.contracts.outcomes import EntryState, Outcome, OutcomeRecord
from manifold.contracts.seq import MAX_SEQ, first_seq_at
from manifold.history.entry import Bounds, EntryHistory
from manifold.history.merge import History
from manifold.queues import Loader, Policy
from manifold.settings import Settings

CANCEL_BATCH_SIZE = 5000  # entries ended in Redis before their outcomes are recorded
TRIGGER_PAGE_SIZE = 1000  # triggers per lookup
REASON = "cancelled by manifold batch cancel"


@dataclass(slots=True)
class Progress:
    """The progress of a cancellation."""

    triggers: int = 0
    entries: Counter[str] = field(default_factory=Counter)  # entries by `EntryState` or `Outcome`
    before: int | None = MAX_SEQ  # triggers before this seq remain; None: none
    spoilt: list[str] = field(default_factory=list)  # vehicles that were skipped, each with the corrupt key to delete


def cancel(
    settings: Settings,
    redis: Redis,
    request_id: str,
    vins: Set[str],
    *,
    before: int = MAX_SEQ,
    limit: int | None = None,
    tell: Callable[[Progress], object] = lambda _: None,
) -> Progress:
    """Cancel the entries of `vins` (empty: all vehicles) in the triggers of this request_id, newest first.

    Triggers older than the retention are skipped, because their entries are no longer sent. `limit`: maximum number of triggers,
    starting before the seq `before`. `tell` receives the progress after each slice. Entries end as `cancelled`, or stay `in
    flight` (cancelled unless the vehicle acknowledges them), or had ended before. After an interruption, repeat the call, from
    the start or from where it stopped.

    Raises:
        Permanent: no trigger has this request_id, or one of `vins` is in none of them; nothing was cancelled.
        Retryable: a recorder does not answer, so the newest triggers are unknown.
    """
    standing = Progress(before=before)
    batches = History(settings, redis).of_request(request_id)
    batches.flush()
    loader = Loader(redis, Policy.of(settings))
    canceller = _Canceller(loader)
    named: list[EntryHistory] = []
    while standing.before is not None and (limit is None or standing.triggers < limit):
        page_size = TRIGGER_PAGE_SIZE if limit is None else min(TRIGGER_PAGE_SIZE, limit - standing.triggers)
        found = batches.page(Bounds(limit=page_size, before=standing.before, since=_first_seq_in_retention(settings)))
        of_small = batches.recorded(found, found.entries.keys())  # read at once for the triggers within the entry limit
        for batch in reversed(found.batches):
            recorded = of_small if batch.seq in found.entries else batches.recorded(found, {batch.seq})
            mine = map(recorded.ended, batches.entries(found, batch, vins))
            if vins:
                named += mine  # cancelled only once every VIN is known to belong to the batch
            else:
                for _ in canceller.end(mine, standing.entries):
                    tell(standing)
            standing.triggers, standing.before = standing.triggers + 1, batch.seq
            tell(standing)
        standing.before = found.before
    _require(standing, request_id, vins - {entry.vin for entry in named}, settings)
    for _ in canceller.end(iter(named), standing.entries):
        tell(standing)
    standing.spoilt = [f"{owner}: {loader.corrupt_key(owner)}" for owner in sorted(loader.spoilt)]
    return standing


def _first_seq_in_retention(settings: Settings) -> int:
    """Return the first seq within the retention; minus an hour of clock skew."""
    return first_seq_at(datetime.now(UTC) - timedelta(days=settings.retention_days, hours=1))


def _require(standing: Progress, request_id: str, strangers: Set[str], settings: Settings) -> None:
    if not standing.triggers:
        raise Permanent(
            f"no trigger had the request_id {request_id!r} in the last {settings.retention_days:g} days; "
            "look it up with manifold batch show, or manifold vin show <VIN>"
        )
    if strangers:
        raise Permanent(f"VIN {min(strangers)!r} is in no batch of {request_id!r}; name vehicles of the batch")


class _Canceller:
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def end(self, entries: Iterator[EntryHistory], standing: Counter[str]) -> Iterator[None]:
        """End open entries, a slice at a time: in the queues, then their outcomes. A slice may be repeated."""
        while some := list(islice(entries, CANCEL_BATCH_SIZE)):
            standing.update(entry.state for entry in some if not entry.is_open)
            now_ms, cancelled = time.time_ns() // 1_000_000, []
            for owner, seq, outcome in self._loader.end(
                _by_owner(entry for entry in some if entry.is_open), Outcome.CANCELLED, now_ms
            ):
                standing[EntryState.IN_FLIGHT if outcome is None else outcome] += 1
                if outcome is Outcome.CANCELLED:
                    cancelled.append(OutcomeRecord(owner, seq, outcome, now_ms, reason=REASON))
            self._loader.add_outcomes(cancelled)
            yield


def _by_owner(entries: Iterator[EntryHistory]) -> Iterator[tuple[str, list[int]]]:
    owners: dict[str, list[int]] = {}
    for entry in entries:
        owners.setdefault(entry.vin, []).append(entry.seq)
    yield from owners.items()
