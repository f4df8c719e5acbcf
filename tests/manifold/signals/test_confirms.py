"""Publisher confirms of a server: single, cumulative, and returned messages."""

import asyncio
from collections.abc import Callable

import pytest
from aio_pika.exceptions import AMQPError

from manifold.signals._confirms import Confirms

Say = Callable[[Confirms], None]


def answers(*says: Say, count: int = 3) -> list[bool]:
    """The confirms of a group that follows one confirmed message, so its tags are 3, 4, 5."""

    async def scenario() -> list[bool]:
        confirms = Confirms()
        for group, said in ((2, (settled(1), settled(2))), (count, says)):
            waiting = asyncio.ensure_future(confirms.all_of(group))
            await asyncio.sleep(0)
            for say in said:
                assert not waiting.done()
                say(confirms)
            found = await waiting
        return found

    return asyncio.run(scenario())


def settled(tag: int, *, multiple: bool = False, taken: bool = True) -> Say:
    return lambda confirms: confirms.settled(tag, multiple=multiple, taken=taken)


@pytest.mark.parametrize(
    ("says", "taken"),
    [
        pytest.param([settled(5), settled(3), settled(4)], [True] * 3, id="in any order"),
        pytest.param([settled(5, multiple=True)], [True] * 3, id="cumulative"),
        pytest.param([settled(4), settled(5, multiple=True)], [True] * 3, id="one confirmed twice"),
        pytest.param([settled(4, multiple=True), settled(5, taken=False)], [True, True, False], id="one rejected"),
        pytest.param([settled(3), settled(5, multiple=True, taken=False)], [True, False, False], id="many rejected"),
    ],
)
def test_a_group_is_waited_for_until_each_message_is_settled(says: list[Say], taken: list[bool]) -> None:
    assert answers(*says) == taken


def test_a_group_ends_with_its_connection_or_a_returned_message() -> None:
    with pytest.raises(AMQPError, match="NO_ROUTE"):
        answers(lambda confirms: confirms.returned("NO_ROUTE"))
    with pytest.raises(ConnectionError, match="gone"):
        answers(settled(3), lambda confirms: confirms.ended("gone"))
