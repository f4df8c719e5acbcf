"""The state of all campaigns on record, kept current while the API runs."""

import asyncio
from collections.abc import Mapping

from manifold.campaigns.fold import Campaign
from manifold.campaigns.record import CampaignRecord, fold_into
from manifold.contracts.errors import Retryable
from manifold.settings import Settings


class Campaigns:
    """All campaigns, over or not. Requests that come during a read share the next one."""

    def __init__(self, settings: Settings) -> None:
        self._record = CampaignRecord(settings, also_over=True)
        self._within_s = settings.api_timeout_seconds
        self._campaigns: dict[str, Campaign] = {}
        self._reading, self._next = asyncio.Lock(), None

    _next: asyncio.Task[None] | None

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
        return (await self.all()).get(name)

    async def _read(self) -> None:
        async with self._reading:
            self._next = None
            await asyncio.to_thread(self._fold)

    def _fold(self) -> None:
        campaigns = dict(self._campaigns)  # others may be reading it
        try:
            for facts in self._record.read():
                fold_into(campaigns, facts)
        finally:
            self._campaigns = campaigns
