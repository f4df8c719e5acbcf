"""Orders that are taken from people: what the record says decides, and what a recorder with a slow clock adds changes nothing."""

import asyncio
from collections.abc import Iterable

from manifold.campaigns.decided import Stage
from manifold.campaigns.facts import Recorded
from manifold.campaigns.fold import Campaign, fold
from manifold.campaigns.intake import Effect, Taken, take
from manifold.contracts import campaigns as r
from manifold.contracts.messages import Receipt, ReceiptStatus
from manifold.contracts.seq import seq_of
from tests.manifold.campaigns.plans import NOW, document

NAME = "maps-47"
TOKEN = "0123456789abcdef" * 2


class Record:
    """A record in memory. Each order is recorded ten seconds after the one before, by a clock that may be behind."""

    def __init__(self) -> None:
        self.orders: dict[int, r.Command] = {}
        self.now_ms, self.behind_ms = NOW, 0

    async def read(self, _: str) -> Campaign | None:
        return fold(Campaign(), [Recorded(*each) for each in self.orders.items()])

    async def publish(self, orders: Iterable[r.Command]) -> list[Receipt]:
        receipts = []
        for order in orders:
            self.now_ms += 10_000
            seq = seq_of(self.now_ms - self.behind_ms, 0, 0)
            self.orders[seq] = order
            receipts.append(Receipt(seq, ReceiptStatus.RECORDED))
        return receipts

    def take(self, order: r.Command, behind_ms: int = 0) -> Taken:
        self.behind_ms = behind_ms
        taken = asyncio.run(take(order, self.read, self.publish))
        assert isinstance(taken, Taken)
        return taken

    def stage(self) -> Stage:
        campaign = asyncio.run(self.read(NAME))
        assert campaign is not None
        return campaign.decided.stage


def running() -> Record:
    record = Record()
    orders = (r.Propose(NAME, "author", plan=document()), r.Approve(NAME, "ann"), r.Start(NAME, "campaigner/0"))
    asyncio.run(record.publish(orders))
    return record


def test_a_pause_by_a_slow_clock_after_a_resume_stays_in_force() -> None:
    for behind_ms in (0, 11_000, 21_000):  # recorded before the resume, then before the first pause, as the clocks say
        record = running()
        record.take(r.Pause(NAME, "ann"))
        record.take(r.Resume(NAME, "ann"))
        assert record.stage() is Stage.RUNNING
        record.take(r.Pause(NAME, "ben"), behind_ms)
        assert record.stage() is Stage.PAUSED
        record.take(r.Resume(NAME, "ann"))
        assert record.stage() is Stage.RUNNING


def test_a_resume_that_is_repeated_with_its_token_is_the_same_order() -> None:
    record, resume = running(), r.Resume(NAME, "ann", token=TOKEN)
    record.take(r.Pause(NAME, "ann"))
    first = record.take(resume)

    assert record.take(resume) == first
    assert first.effect is Effect.APPLIED
