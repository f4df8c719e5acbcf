"""The state of campaigns on record, kept current while the API runs."""

import asyncio
from collections.abc import Mapping

from manifold.campaigns.decided import OVER
from manifold.campaigns.fold import Campaign
from manifold.campaigns.record import CampaignRecord, fold_into, read_campaigns
from manifold.contracts.errors import Retryable
from manifold.contracts.seq import EPOCH_MS, seq_of, wall_clock_ms
from manifold.queues import Policy
from manifold.settings import Settings


class Campaigns:
    """All campaigns but those that ended before the retention of entries: nothing can change in them, and they are read by name.

    Requests that come during a read share the next one.
    """

    def __init__(self, settings: Settings) -> None:
        self.kept_ms = Policy.of(settings).retention_ms  # after the end of a campaign
        self._settings, self._record = settings, CampaignRecord(settings, over_since=self._since())
        self._reading_old = asyncio.Lock()
        self._within_s = settings.api_timeout_seconds
        self._campaigns: dict[str, Campaign] = {}
        self._reading = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None  # a read that has not begun, which new requests share

    async def all(self) -> Mapping[str, Campaign]:
        """The campaigns by id, with everything that was on record when this was called.

        Raises:
            Retryable: the record cannot be read, or not in time.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._read(), name="api.campaigns")
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())  # whether or not anybody waits
        read = self._next
        done, _ = await asyncio.wait((read,), timeout=self._within_s)
        if not done:
            raise Retryable(f"the record of campaigns was not read within {self._within_s:g} s; ask again")
        read.result()
        return self._campaigns

    async def one(self, name: str) -> Campaign | None:
        """A campaign; None if no record names it.

        Raises:
            Retryable: as for `all`.
        """
        found = (await self.all()).get(name)
        if found is None and self._record.leaves_out(name):
            async with self._reading_old:
                return (await asyncio.to_thread(read_campaigns, self._settings, [name])).get(name)
        return found

    async def _read(self) -> None:
        async with self._reading:
            self._next = None
            await asyncio.to_thread(self._fold)

    def _fold(self) -> None:
        campaigns = dict(self._campaigns)  # others may be reading it
        try:
            for facts in self._record.read():
                fold_into(campaigns, facts)
            for name in [
                name for name, each in campaigns.items() if each.decided.stage in OVER and max(each.orders) < self._since()
            ]:
                self._record.forget(name, campaigns.pop(name).newest)
        finally:
            self._campaigns = campaigns

    def _since(self) -> int:
        return seq_of(max(EPOCH_MS, wall_clock_ms() - self.kept_ms), 0, 0)
