"""Orders that are taken from people: what the record says decides, and what a recorder with a slow clock adds changes nothing."""

import asyncio
from collections.abc import Iterable

from manifold.campaigns.decided import Stage
from manifold.campaigns.facts import Recorded
from manifold.campaigns.fold import Campaign, fold
from manifold.campaigns.intake import Declined, Effect, Taken, take
from manifold.campaigns.parsing import plan_sha256
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

    async def read(self, _: str) -> Campaign:
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
        return asyncio.run(self.read(NAME)).decided.stage


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


def test_an_approval_of_a_plan_that_was_amended_meanwhile_has_no_effect() -> None:
    record, faster = Record(), document(rate=500)
    asyncio.run(record.publish([r.Propose(NAME, "author", plan=document(rate=5))]))
    asked = asyncio.run(record.read(NAME)).decided.plan_sha256
    record.take(r.Amend(NAME, "author", plan=faster))

    declined = asyncio.run(take(r.Approve(NAME, "ann", plan_sha256=asked), record.read, record.publish))

    assert isinstance(declined, Declined)
    assert declined.reason.startswith(f"plan_sha256 {asked[:12]}…: the plan was amended")
    record.take(r.Approve(NAME, "ann", plan_sha256=plan_sha256(faster)))
    assert asyncio.run(record.read(NAME)).decided.is_approved


def test_an_approval_names_the_plan_that_is_on_record_when_it_is_given() -> None:
    record = Record()
    asyncio.run(record.publish([r.Propose(NAME, "author", plan=document())]))
    approve = r.Approve(NAME, "ann", token=TOKEN)
    first = record.take(approve)

    assert record.orders[first.seq] == r.Approve(NAME, "ann", token=TOKEN, plan_sha256=plan_sha256(document()))
    assert record.take(approve) == first
