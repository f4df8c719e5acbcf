"""The state of all campaigns that are not over."""

from collections.abc import Iterator
from time import monotonic

from manifold.campaigns.decided import OVER
from manifold.campaigns.fold import Campaign
from manifold.campaigns.record import CampaignRecord, fold_into
from manifold.campaigns.service import _metrics
from manifold.campaigns.views import in_order
from manifold.contracts.seq import unix_ms_of, wall_clock_ms
from manifold.settings import Settings


class Book:
    """Follows the record of all campaigns. `refresh` blocks: call it in a thread, and nothing else meanwhile."""

    def __init__(self, settings: Settings) -> None:
        self._record = CampaignRecord(settings)
        self._campaigns: dict[str, Campaign] = {}
        self._is_current = False  # whether everything that was on record at the start is folded

    def refresh(self) -> None:
        """Fold what is new.

        Raises:
            Retryable: as for `CampaignRecord.read`.
        """
        oldest_ms = now_ms = wall_clock_ms()
        for facts in self._record.read():
            fold_into(self._campaigns, facts)
            seqs = (fact.seq for of_campaign in facts.values() for fact in of_campaign)
            oldest_ms = min(oldest_ms, min(map(unix_ms_of, seqs), default=now_ms))
        if self._is_current:  # the first refresh folds old facts
            _metrics.FOLD_LAG_SECONDS.set((wall_clock_ms() - oldest_ms) / 1000 if oldest_ms < now_ms else 0)
        self._is_current = True
        for name in [name for name, campaign in self._campaigns.items() if campaign.decided.stage in OVER]:
            del self._campaigns[name]
            self._record.forget(name)

    def proposed(self) -> Iterator[tuple[str, Campaign]]:
        """The campaigns that have a plan, oldest proposal first."""
        return in_order(self._campaigns)

    def clocks_ms(self) -> list[int]:
        """What the clock of each recorder shows now, or somewhat later (Unix ms)."""
        return [told_ms + round((monotonic() - at) * 1000) for told_ms, at in self._record.clock_ms.values()]
