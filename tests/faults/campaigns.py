"""The campaigns of a run, one after the other: each is approved, paused, resumed, and watched to its end."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from manifold.campaigns.facts import Released
from manifold.campaigns.record import read_facts
from manifold.contracts import campaigns as r
from manifold.contracts.messages import Receipt
from manifold.messaging.publisher import Publisher
from manifold.settings import Settings
from tests.faults.history import History, Line, What
from tests.faults.watchers import Vehicles

BRAKED_S, LOOK_S, LONGEST_S = 5.0, 0.3, 400.0  # the clock of a recorder may be minutes ahead, and the rate then waits for it
Insist = Callable[[Callable[[], Any]], Awaitable[Receipt | None]]


class Campaigns:
    """Plays campaigns for all vehicles of a run."""

    def __init__(self, settings: Settings, history: History, witness: Vehicles, seed: int, named: Sequence[str]) -> None:
        self._settings, self._history, self._witness = settings, history, witness
        self._seed, self._vins = seed, named
        self.names: list[str] = []
        self.trouble = ""

    async def play(self, door: Settings, insist: Insist, enough: asyncio.Event) -> None:
        """Play one campaign after the other until it is enough; the last one too to its end."""
        async with Publisher(door) as publisher, Publisher(self._settings, self._settings.mqtt_username_campaigns) as orders:
            while not enough.is_set() and not self.trouble:
                name = f"campaign_{self._seed}_{len(self.names) + 1}"
                self.names.append(name)
                if not await self._one(name, publisher, orders, insist):
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BRAKED_S):
                        await enough.wait()

    async def _one(self, name: str, publisher: Publisher, orders: Publisher, insist: Insist) -> bool:
        """Whether it could be played to its end. It is paused while the second wave opens: either may be on record first."""
        rate, half = len(self._vins) * 3 // 2, len(self._vins) // 2
        ends = (datetime.now(UTC) + timedelta(hours=6)).isoformat(timespec="seconds")
        waves = [{"name": "first", "vins": list(self._vins[:half]), "gate": {"approve": 1}}, {"name": "rest", "size": "rest"}]
        plan = {"campaign": name, "data_id": f"data-{name}", "targets": {"vins": list(self._vins)}, "rate": rate, "ends": ends}
        for vin in self._vins:
            self._history.tell(Line(time.time(), What.TARGETED, vin, request=name, note=f"{rate} a minute"))

        async def order(kind: type[Any], by: str, **fields: object) -> bool:
            command = kind(name, by, token=secrets.token_hex(16), **fields)
            return await insist(partial(orders.order, command)) is not None

        if await insist(partial(publisher.data, f"data-{name}", name.encode())) is None:
            return False
        if not (await order(r.Propose, "author", plan=plan | {"waves": waves}) and await order(r.Approve, "approver")):
            return False
        if not await self._arrived(name, self._vins[:half]):
            return False
        if not (await order(r.Approve, "approver", wave=0) and await order(r.Pause, "approver")):
            return False
        braked_at = time.time()
        await asyncio.sleep(BRAKED_S)
        self._history.tell(Line(braked_at, What.BRAKED, request=name, until=time.time()))
        return await order(r.Resume, "approver") and await self._arrived(name, self._vins)

    async def _arrived(self, name: str, named: Sequence[str]) -> bool:
        """Wait until these vehicles have the campaign's data; False: they do not get it."""
        wanted, deadline = {(vin, name) for vin in named}, time.monotonic() + LONGEST_S
        while missing := wanted - self._witness.delivered:
            if time.monotonic() > deadline:
                self.trouble = f"{name}: {len(missing)} vehicles did not get it in {LONGEST_S:g} s"
                return False
            await asyncio.sleep(LOOK_S)
        return True

    def tell(self) -> None:
        """Report every release that is on record.

        Raises:
            Retryable: the record cannot be read.
        """
        for name in self.names:
            for fact in (each for each in read_facts(self._settings, name) if isinstance(each, Released)):
                until = None if fact.until_ms is None else fact.until_ms / 1000
                for vin in fact.vins:
                    self._history.tell(Line(fact.at_ms / 1000, What.RELEASED, vin, fact.seq, name, until=until))
