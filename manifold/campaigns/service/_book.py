"""The campaigns that are not over, as they are on record."""

from collections.abc import Iterator
from time import monotonic

from manifold.campaigns.fold import Campaign
from manifold.campaigns.record import ENDED, CampaignRecord, fold_into
from manifold.settings import Settings


class Book:
    """Follows the record of all campaigns. `refresh` blocks: call it in a thread, and nothing else meanwhile."""

    def __init__(self, settings: Settings) -> None:
        self._record = CampaignRecord(settings)
        self._campaigns: dict[str, Campaign] = {}

    def refresh(self) -> None:
        """Fold what is new.

        Raises:
            Retryable: as for `CampaignRecord.read`.
        """
        for facts in self._record.read():
            fold_into(self._campaigns, facts)
        for name in [name for name, campaign in self._campaigns.items() if campaign.decided.stage in ENDED]:
            del self._campaigns[name]
            self._record.forget(name)

    def proposed(self) -> Iterator[tuple[str, Campaign]]:
        """The campaigns that have a plan, those proposed first first."""
        have_plan = [(min(each.orders), name, each) for name, each in self._campaigns.items() if each.decided.plan is not None]
        yield from ((name, each) for _, name, each in sorted(have_plan, key=lambda known: known[:2]))

    def clocks_ms(self) -> list[int]:
        """What the clock of each recorder shows now, or somewhat later (Unix ms)."""
        return [told_ms + round((monotonic() - at) * 1000) for told_ms, at in self._record.clock_ms.values()]
