"""The present state of the recorded campaigns, updated on each request."""

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
    """The recorded campaigns.

    Campaigns that ended before the retention of entries are not kept in memory, because nothing can change in them; `one` reads
    them on request. Requests that arrive while the record is being read share the next read.
    """

    def __init__(self, settings: Settings) -> None:
        self.kept_ms = Policy.of(settings).retention_ms  # how long a campaign is kept in memory after its end
        self._settings = settings
        self._record = CampaignRecord(settings, ended_since=self._oldest_kept_seq())
        self._timeout_s = settings.api_timeout_seconds
        self._campaigns: dict[str, Campaign] = {}
        self._read_lock = asyncio.Lock()
        self._old_read_lock = asyncio.Lock()
        self._next_read: asyncio.Task[None] | None = None  # a read that has not begun, which new requests share

    async def all(self) -> Mapping[str, Campaign]:
        """Return the campaigns in memory by id, including everything that was on record when this method was called.

        Raises:
            Retryable: the record cannot be read, or the read takes too long.
        """
        if self._next_read is None:
            self._next_read = asyncio.create_task(self._read(), name="api.campaigns")
            # Retrieve the exception even if no request waits any more, so that asyncio does not warn.
            self._next_read.add_done_callback(lambda task: task.cancelled() or task.exception())
        read_task = self._next_read
        done, _ = await asyncio.wait((read_task,), timeout=self._timeout_s)
        if not done:
            raise Retryable(f"the record of campaigns was not read within {self._timeout_s:g} s; ask again")
        read_task.result()  # raises if the read has failed
        return self._campaigns

    async def one(self, name: str) -> Campaign | None:
        """Return a campaign, or None if it is not on record.

        Raises:
            Retryable: the record cannot be read, or the read takes too long.
        """
        campaign = (await self.all()).get(name)
        if campaign is None and self._record.leaves_out(name):  # it is on record, but ended too long ago to be kept
            async with self._old_read_lock:
                old_campaigns = await asyncio.to_thread(read_campaigns, self._settings, [name])
                return old_campaigns.get(name)
        return campaign

    async def _read(self) -> None:
        async with self._read_lock:
            self._next_read = None  # requests from now on need another read
            await asyncio.to_thread(self._update)

    def _update(self) -> None:
        """Read what is new on record, and forget the campaigns that ended before the retention of entries."""
        campaigns = dict(self._campaigns)  # a copy, because requests may be reading the present one
        try:
            for facts in self._record.read():
                fold_into(campaigns, facts)
            oldest_kept_seq = self._oldest_kept_seq()
            for name, campaign in list(campaigns.items()):
                if campaign.decided.stage in OVER and max(campaign.orders) < oldest_kept_seq:
                    del campaigns[name]
                    self._record.forget(name, campaign.newest)
        finally:  # what was read before an error is valid, and may be read again without effect
            self._campaigns = campaigns

    def _oldest_kept_seq(self) -> int:
        """Return the lowest seq that the last order of an ended campaign may have for the campaign to be kept."""
        return seq_of(max(EPOCH_MS, wall_clock_ms() - self.kept_ms), 0, 0)
