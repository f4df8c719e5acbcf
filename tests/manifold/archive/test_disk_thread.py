"""The disk thread of the journal: calls run in order, raise to the caller, and are drained on stop."""

import asyncio
import threading
from functools import partial

import pytest

from manifold.archive.disk_thread import DiskThread


def test_calls_run_in_order_and_return_or_raise() -> None:
    thread, seen = DiskThread("test"), list[int]()

    def call(number: int) -> int:
        seen.append(number)
        if number == 2:
            raise OSError("no space left")
        return number * 10

    async def scenario() -> list[int | BaseException]:
        thread.submit(partial(call, 0))
        return await asyncio.gather(*(thread.run(call, number) for number in (1, 2, 3)), return_exceptions=True)

    answers = asyncio.run(scenario())
    thread.stop()

    assert seen == [0, 1, 2, 3]
    assert [answers[0], str(answers[1]), answers[2]] == [10, "no space left", 30]


def test_a_failed_or_abandoned_call_does_not_stop_the_next() -> None:
    thread, may_go_on = DiskThread("test"), threading.Event()

    async def scenario() -> int:
        thread.submit(partial(int, "no number"))
        given_up = asyncio.ensure_future(thread.run(may_go_on.wait))
        await asyncio.sleep(0)
        given_up.cancel()
        may_go_on.set()
        return await thread.run(int, "7")

    assert asyncio.run(scenario()) == 7
    thread.stop()


def test_a_call_whose_loop_has_ended_does_not_stop_the_next() -> None:
    thread, may_go_on, went_on = DiskThread("test"), threading.Event(), threading.Event()

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await thread.run(may_go_on.wait)

    asyncio.run(scenario())
    may_go_on.set()
    thread.submit(went_on.set)
    thread.stop()

    assert went_on.is_set()


def test_stop_drains_the_queue_and_accepts_nothing_more() -> None:
    thread, done = DiskThread("test"), list[int]()
    for number in range(100):
        thread.submit(partial(done.append, number))
    thread.stop()

    assert done == list(range(100))
    with pytest.raises(RuntimeError, match="was stopped"):
        asyncio.run(thread.run(int, "7"))


def test_an_unused_thread_can_be_stopped() -> None:
    DiskThread("test").stop()
