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

# How long a refresh waits for its folds. Drawing a million targets takes seconds, and other campaigns must not wait for that.
FOLD_TIMEOUT_S = 0.2

log = structlog.get_logger(__name__)


class Book:
    """Follows the record of all campaigns. `refresh` blocks: call it in a thread, and call no other method while it runs."""

    def __init__(self, settings: Settings) -> None:
        self.left_alone: dict[str, str] = {}  # campaigns that are no longer folded or decided → the reason
        self._record = CampaignRecord(settings)
        self._campaigns: dict[str, Campaign] = {}
        self._is_current = False  # whether the first refresh, which reads the whole record, is complete
        self._unfolded: dict[str, list[Fact]] = {}  # campaign → facts that are read but not folded
        self._folds: dict[str, Future[Campaign]] = {}  # campaign → its running fold
        self._threads = ThreadPoolExecutor(thread_name_prefix="campaigner.fold")

    def refresh(self) -> None:
        """Read and fold new facts. A fold that takes long continues in its thread, and a later call takes its result.

        Raises:
            Retryable: as for `CampaignRecord.read`.
        """
        began_ms = wall_clock_ms()
        oldest_ms = began_ms  # when the oldest of the new facts was recorded; `began_ms` if there is none
        self._fold(timeout_s=0)  # also starts folds of facts that were read while their campaign was being folded
        for batch in self._record.read():
            for name, facts in batch.items():
                oldest_ms = min([oldest_ms, *(unix_ms_of(fact.seq) for fact in facts)])
                if name not in self.left_alone:
                    self._unfolded.setdefault(name, []).extend(facts)
            self._fold(timeout_s=FOLD_TIMEOUT_S if self._is_current else None)  # the first refresh waits for all folds
        if self._is_current:  # the first refresh folds old facts, whose age is no lag
            has_lag = oldest_ms < began_ms
            _metrics.FOLD_LAG_SECONDS.set((wall_clock_ms() - oldest_ms) / 1000 if has_lag else 0)
        self._is_current = True
        over = [name for name, campaign in self._campaigns.items() if campaign.decided.stage in OVER]
        for name in over:
            if not self.is_behind(name):  # otherwise its newest fact is not known yet
                campaign = self._campaigns.pop(name)
                self._record.forget(name, campaign.newest)

    def proposed(self) -> Iterator[tuple[str, Campaign]]:
        """Yield the followed campaigns that have a plan, oldest proposal first."""
        return in_order(self._campaigns)

    def leave_alone(self, name: str, exc: Exception) -> None:
        """Stop following a campaign after an unexpected error, so that the other campaigns continue."""
        log.error("unexpected error; campaign left alone until the campaigner starts again", campaign=name, exc_info=exc)
        because = f"because of an unexpected {type(exc).__name__}; see the log"
        self.left_alone[name] = f"left alone until the campaigner starts again, {because}"
        self._campaigns.pop(name, None)
        self._unfolded.pop(name, None)
        _metrics.LEFT_ALONE.set(len(self.left_alone))

    def is_behind(self, name: str) -> bool:
        """Whether facts of the campaign are read but not folded yet."""
        return name in self._folds or name in self._unfolded

    def clocks_ms(self) -> list[int]:
        """Estimate what the clock of each recorder shows now (Unix ms): its last known time and the time since then."""
        now = monotonic()
        return [clock_ms + round((now - read_at) * 1000) for clock_ms, read_at in self._record.clocks.values()]

    def _fold(self, timeout_s: float | None) -> None:
        """Start a fold for each campaign that needs one and has none running, and wait for all folds.

        `timeout_s` limits how long to wait; None waits without limit.
        """
        self._take_results()
        for name in self._unfolded.keys() - self._folds.keys():
            known = self._campaigns.get(name, Campaign())
            self._folds[name] = self._threads.submit(fold, known, self._unfolded.pop(name))
        wait(self._folds.values(), timeout_s)
        self._take_results()

    def _take_results(self) -> None:
        """Replace the states of campaigns by the results of folds that have ended."""
        done = [name for name, running in self._folds.items() if running.done()]
        for name in done:
            try:
                self._campaigns[name] = self._folds.pop(name).result()
            except Exception as exc:  # noqa: BLE001  # one campaign must not stop the others
                self.leave_alone(name, exc)
