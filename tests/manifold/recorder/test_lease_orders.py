"""No interleaving of recorders and stores issues a seq twice."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from manifold.archive.claims import Claim
from manifold.archive.journal_folder import JournalFolder
from manifold.archive.lease import Lease
from manifold.contracts.errors import Permanent, Retryable
from tests.manifold.recorder.lease_worlds import LEASE_S, NOON_MS, Register, World
from tests.support.virtual_time import in_virtual_time

WORLDS = 120


@pytest.mark.parametrize("copies", [False, True], ids=["stores away", "copied journals"])
def test_no_order_of_steps_issues_a_seq_twice(tmp_path: Path, copies: bool) -> None:
    total = 0
    for seed in range(WORLDS):
        world = World(seed, tmp_path / str(seed), copies=copies)
        in_virtual_time(world.run())
        assert len(set(world.given)) == len(world.given), f"seed {seed}"
        total += len(world.given)
    assert total > 10 * WORLDS  # otherwise the worlds prove nothing


class Promptly(Register):
    """A store that answers at once; `before` is called with each claim to be written or removed."""

    def __init__(self) -> None:
        super().__init__(random.Random())
        self.before: Callable[[str, Claim], Awaitable[object] | None] = lambda _, __: None

    async def put(self, claim: Claim) -> None:
        if (waiting := self.before("put", claim)) is not None:
            await waiting
        await super().put(claim)

    async def remove(self, claim: Claim) -> None:
        if (waiting := self.before("remove", claim)) is not None:
            await waiting
        await super().remove(claim)

    async def _step(self) -> None:
        if self.away:
            raise Retryable("away")


def virtual_ms() -> int:
    return NOON_MS + round(asyncio.get_running_loop().time() * 1000)


@contextmanager
def process(folder: Path, archive: Register) -> Iterator[Lease]:
    """The lease of a process on this journal, which ends as if killed."""
    place = JournalFolder(folder)
    place.lock()
    try:
        yield Lease(0, place, archive, [], lease_s=LEASE_S, clock_ms=virtual_ms)
    finally:
        place.unlock()


def test_a_withdrawn_claim_is_not_continued_if_no_store_responds(tmp_path: Path) -> None:
    """A recorder that saw the release continues from its seq; this one would issue the rest of its former range."""

    def another_is_as_quick(_: str, claim: Claim) -> None:
        rival = replace(claim, place="another", journal="another", where="another")
        archive.held[rival.name] = rival

    archive = Promptly()

    async def scenario() -> None:
        with process(tmp_path / "here", archive) as lease:
            await lease.take(0)
        archive.before = another_is_as_quick
        with process(tmp_path / "here", archive) as lease, pytest.raises(Permanent, match="the number of another recorder"):
            await lease.take(0)
        archive.away = True
        with process(tmp_path / "here", archive) as lease, pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await lease.take(0)

    in_virtual_time(scenario())


def test_deleting_a_stale_claim_late_keeps_the_next_claim_of_its_holder(tmp_path: Path) -> None:
    """It was paused after its check, and the former holder has started again meanwhile."""
    archive, forgets, go_on = Promptly(), asyncio.Event(), asyncio.Event()

    async def stopped() -> None:
        forgets.set()
        await go_on.wait()

    async def scenario() -> None:
        with process(tmp_path / "here", archive) as lease:
            await lease.take(0)
        await asyncio.sleep(2 * LEASE_S)
        archive.before = lambda what, _: stopped() if what == "remove" else None
        with process(tmp_path / "there", archive) as lease:
            late = asyncio.create_task(lease.take(0))
            await forgets.wait()
            archive.before = lambda _, __: None
            with process(tmp_path / "here", archive) as again:
                await asyncio.sleep(2 * LEASE_S)
                mine = await again.take(0)
                go_on.set()
                await late
                with suppress(TimeoutError):
                    async with asyncio.timeout(LEASE_S):
                        await lease.renew_until_lost()
                assert lease.lost is not None
                assert mine.next()

    in_virtual_time(scenario())
