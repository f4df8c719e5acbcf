"""The state of all campaigns that are not over."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from time import monotonic

import structlog

from manifold.campaigns.decided import OVER
from manifold.campaigns.facts import Fact
from manifold.campaigns.fold import Campaign, fold
from manifold.campaigns.record import CampaignRecord
from manifold.campaigns.service import _metrics
from manifold.campaigns.views import in_order
from manifold.contracts.seq import unix_ms_of, wall_clock_ms
from manifold.settings import Settings

# How long a refresh waits for its folds. Drawing a million targets takes seconds, and no other campaign must wait for that.
FOLD_S = 0.2

log = structlog.get_logger(__name__)


class Book:
    """Follows the record of all campaigns. `refresh` blocks: call it in a thread, and nothing else meanwhile."""

    def __init__(self, settings: Settings) -> None:
        self.left_alone: dict[str, str] = {}  # campaign → why nothing of it is folded or decided any more
        self._record = CampaignRecord(settings)
        self._campaigns: dict[str, Campaign] = {}
        self._is_current = False  # whether everything that was on record at the start is folded
        self._unfolded: dict[str, list[Fact]] = {}  # facts that were read, by campaign
        self._folds: dict[str, Future[Campaign]] = {}  # one at a time for each campaign
        self._threads = ThreadPoolExecutor(thread_name_prefix="campaigner.fold")

    def refresh(self) -> None:
        """Fold new facts. A fold that takes long continues in its thread, and a later call takes its result.

        Raises:
            Retryable: as for `CampaignRecord.read`.
        """
        oldest_ms = now_ms = wall_clock_ms()
        self._fold(0)
        for facts in self._record.read():
            for name, of_campaign in facts.items():
                if name not in self.left_alone:
                    self._unfolded.setdefault(name, []).extend(of_campaign)
            seqs = (fact.seq for of_campaign in facts.values() for fact in of_campaign)
            oldest_ms = min(oldest_ms, min(map(unix_ms_of, seqs), default=now_ms))
            self._fold(FOLD_S if self._is_current else None)
        if self._is_current:  # the first refresh folds old facts
            _metrics.FOLD_LAG_SECONDS.set((wall_clock_ms() - oldest_ms) / 1000 if oldest_ms < now_ms else 0)
        self._is_current = True
        over = [name for name, campaign in self._campaigns.items() if campaign.decided.stage in OVER]
        for name in over:
            if not self.is_behind(name):
                self._record.forget(name, self._campaigns.pop(name).newest)

    def proposed(self) -> Iterator[tuple[str, Campaign]]:
        """The campaigns that have a plan, oldest proposal first."""
        return in_order(self._campaigns)

    def leave_alone(self, name: str, exc: Exception) -> None:
        """Forget a campaign after an unexpected error, so that the others go on."""
        log.error("campaign left alone after an unexpected error", campaign=name, exc_info=exc)
        because = f"because of an unexpected {type(exc).__name__}; see the log"
        self.left_alone[name] = f"left alone until the campaigner starts again, {because}"
        self._campaigns.pop(name, None)
        self._unfolded.pop(name, None)
        _metrics.LEFT_ALONE.set(len(self.left_alone))

    def is_behind(self, name: str) -> bool:
        """Whether more of a campaign was read than is folded."""
        return name in self._folds or name in self._unfolded

    def clocks_ms(self) -> list[int]:
        """What the clock of each recorder shows now, or somewhat later (Unix ms)."""
        return [told_ms + round((monotonic() - at) * 1000) for told_ms, at in self._record.clock_ms.values()]

    def _fold(self, within_s: float | None) -> None:
        """Take the states of folds that have ended, start those that are due, and wait for them."""
        self._take()
        for name in self._unfolded.keys() - self._folds.keys():
            known, facts = self._campaigns.get(name, Campaign()), self._unfolded.pop(name)
            self._folds[name] = self._threads.submit(fold, known, facts)
        wait(self._folds.values(), within_s)
        self._take()

    def _take(self) -> None:
        for name in [name for name, folding in self._folds.items() if folding.done()]:
            try:
                self._campaigns[name] = self._folds.pop(name).result()
            except Exception as exc:  # noqa: BLE001  # one campaign must not stop the others
                self.leave_alone(name, exc)
