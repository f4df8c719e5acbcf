"""Cancels the open entries of a batch, for all or for some of its vehicles: trigger by trigger, in slices."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
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

CANCEL_SLICE_SIZE = 5000  # entries ended in Redis before their outcomes are recorded
TRIGGER_PAGE_SIZE = 1000  # triggers per lookup
REASON = "cancelled by manifold batch cancel"


@dataclass(slots=True)
class Progress:
    """The progress of a cancellation."""

    triggers: int = 0
    entries: Counter[str] = field(default_factory=Counter)  # entries by `EntryState` or `Outcome`
    before: int | None = MAX_SEQ  # triggers before this seq remain; None if no trigger remains
    skipped: list[str] = field(default_factory=list)  # vehicles that were skipped, each with the corrupt key to delete


def cancel(
    settings: Settings,
    redis: Redis,
    request_id: str,
    vins: Set[str],
    *,
    before: int = MAX_SEQ,
    limit: int | None = None,
    report_progress: Callable[[Progress], object] = lambda _: None,
) -> Progress:
    """Cancel the entries of `vins` in the triggers of this request_id, newest trigger first; return what was done.

    If `vins` is empty, the entries of all vehicles are cancelled. Triggers older than the retention are skipped, because their
    entries are no longer sent. Only triggers before the seq `before` are read, at most `limit` of them. `report_progress` is
    called after each slice of entries and after each trigger.

    An open entry ends as `cancelled`. An entry in flight stays so for now, and ends as cancelled unless the vehicle acknowledges
    it. After an interruption, the call may be repeated, from the start or from the trigger where it stopped.

    Raises:
        Permanent: no trigger has this request_id, or one of `vins` is in none of the triggers; no entry was cancelled.
        Retryable: a recorder does not answer, so the newest triggers are unknown.
    """
    progress = Progress(before=before)
    batches = History(settings, redis).of_request(request_id)
    batches.flush()
    loader = Loader(redis, Policy.of(settings))
    entries_of_vins: list[EntryHistory] = []
    while progress.before is not None and (limit is None or progress.triggers < limit):
        page_size = TRIGGER_PAGE_SIZE if limit is None else min(TRIGGER_PAGE_SIZE, limit - progress.triggers)
        page = batches.page(Bounds(limit=page_size, before=progress.before, since=_first_seq_in_retention(settings)))
        # The page has the entries of its small triggers. Their outcomes are read together, those of a large trigger on their own.
        recorded_of_small = batches.recorded(page, page.entries.keys())
        for batch in reversed(page.batches):
            is_small = batch.seq in page.entries
            recorded = recorded_of_small if is_small else batches.recorded(page, {batch.seq})
            entries = map(recorded.with_outcome, batches.entries(page, batch, vins))
            if vins:
                entries_of_vins += entries  # ended below, once every VIN is known to be in a trigger
            else:
                _end_entries(loader, entries, progress, report_progress)
            progress.triggers += 1
            progress.before = batch.seq
            report_progress(progress)
        progress.before = page.before
    unknown_vins = vins - {entry.vin for entry in entries_of_vins}
    _require_found(request_id, progress.triggers, unknown_vins, settings)
    _end_entries(loader, iter(entries_of_vins), progress, report_progress)
    progress.skipped = [f"{owner}: {loader.corrupt_key(owner)}" for owner in sorted(loader.spoilt)]
    return progress


def _first_seq_in_retention(settings: Settings) -> int:
    """The first seq of the retention, which is extended by one hour, because clocks may differ."""
    return first_seq_at(datetime.now(UTC) - timedelta(days=settings.retention_days, hours=1))


def _require_found(request_id: str, triggers: int, unknown_vins: Set[str], settings: Settings) -> None:
    """Raise Permanent if the number of triggers is 0, or if there are VINs that no trigger names."""
    if not triggers:
        raise Permanent(
            f"no trigger had the request_id {request_id!r} in the last {settings.retention_days:g} days; "
            "look it up with manifold batch show, or manifold vin show <VIN>"
        )
    if unknown_vins:
        raise Permanent(f"VIN {min(unknown_vins)!r} is in no batch of {request_id!r}; name vehicles of the batch")


def _end_entries(
    loader: Loader,
    entries: Iterator[EntryHistory],
    progress: Progress,
    report_progress: Callable[[Progress], object],
) -> None:
    """End those entries that are open, and record their outcomes, in slices of `CANCEL_SLICE_SIZE` entries.

    The resulting states of all entries are added to the counts of `progress`, which is reported after each slice. To end an
    entry again is harmless, so a slice may be repeated.
    """
    while entry_slice := list(islice(entries, CANCEL_SLICE_SIZE)):
        progress.entries.update(entry.state for entry in entry_slice if not entry.is_open)
        now_ms = time.time_ns() // 1_000_000
        open_seqs = _seqs_by_owner(entry for entry in entry_slice if entry.is_open)
        cancelled = []
        for owner, seq, outcome in loader.end(open_seqs.items(), Outcome.CANCELLED, now_ms):
            state = EntryState.IN_FLIGHT if outcome is None else outcome
            progress.entries[state] += 1
            if outcome is Outcome.CANCELLED:  # an entry with another outcome had ended before
                cancelled.append(OutcomeRecord(owner, seq, outcome, now_ms, reason=REASON))
        loader.add_outcomes(cancelled)
        report_progress(progress)


def _seqs_by_owner(entries: Iterable[EntryHistory]) -> dict[str, list[int]]:
    seqs: dict[str, list[int]] = {}
    for entry in entries:
        seqs.setdefault(entry.vin, []).append(entry.seq)
    return seqs
