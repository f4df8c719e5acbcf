"""The state is a function of the set of facts: order, repetition and batching do not matter."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifold.campaigns.facts import Attempt, Ended, Ending, Fact, Recorded, Released, joined
from manifold.campaigns.fold import Campaign, Standing, Status, fold, standing
from manifold.campaigns.plan import Retry
from manifold.contracts import campaigns as r
from manifold.contracts.seq import seq_of, unix_ms_of
from tests.manifold.campaigns.plans import NOW, document, vins

NAMES = vins(4)
PLAN = document(number=4, waves=[{"name": "a", "size": 1}, {"name": "b", "size": "rest"}], retry={"times": 1, "after": "1h"})
RULES = {"rules": [{"name": "r1", "count": ["failed"], "over": 1}]}
BY = ("maps-47", "campaigner/0")

orders: st.SearchStrategy[r.Command] = st.sampled_from(
    [
        r.Propose("maps-47", "author", plan=PLAN),
        r.Propose("maps-47", "another", plan=PLAN | RULES),
        r.AddTargets("maps-47", "author", targets=(r.Target("EXTRA", "Asia/Tokyo", "a"),)),
        r.Approve("maps-47", "ann"),
        r.Approve("maps-47", "bob", wave=0),
        r.Start(*BY),
        r.Hold(*BY, wave=0),
        r.Unhold(*BY, wave=0),
        r.Pass(*BY, wave=0),
        r.Pause("maps-47", "ann", token="0" * 32),
        r.Pause(*BY, rule="r1"),
        r.Resume("maps-47", "ann", accept=("r1",)),
        r.Resume("maps-47", "ann", if_version=3),
        r.Note(*BY, rule="r1"),
        r.Fence(*BY, epoch=2),
        r.Cancel("maps-47", "ann"),
        r.Complete(*BY),
    ]
)
RELEASES = tuple(seq_of(NOW + 30_000 * place, 0, 0) for place in range(3))


@st.composite
def histories(draw: st.DrawFn) -> list[Fact]:
    """Facts with their own seqs, as several recorders may assign them: the end of an entry can have the smaller seq."""
    facts: list[Fact] = [
        Released(seq, place % 2, place + 1, tuple(sorted(draw(st.sets(st.sampled_from(NAMES), min_size=1)))))
        for place, seq in enumerate(RELEASES[: draw(st.integers(0, 3))])
    ]
    numbers = iter(range(1, 1000))
    facts += [Recorded(seq_of(NOW + 5000 * next(numbers), 1, 0), order) for order in draw(st.lists(orders, max_size=12))]
    for _ in range(draw(st.integers(0, 12))):
        name, release, ending = draw(st.tuples(st.sampled_from(NAMES), st.sampled_from(RELEASES), st.sampled_from(Ending)))
        facts.append(Ended(seq_of(NOW - 20_000 + 5000 * next(numbers), 2, 0), name, release, ending))
    return facts


@settings(max_examples=50, deadline=None)
@given(histories(), st.data())
def test_any_order_repetition_and_batching_give_the_same_state(facts: list[Fact], data: st.DataObject) -> None:
    mixed = data.draw(st.permutations(facts + facts[::2]))
    cut = data.draw(st.integers(0, len(mixed)))

    in_batches = fold(fold(Campaign(), mixed[:cut]), mixed[cut:])

    assert in_batches == fold(Campaign(), facts)


@settings(max_examples=50, deadline=None)
@given(histories())
def test_the_tallies_count_every_target_once(facts: list[Fact]) -> None:
    campaign = fold(Campaign(), facts)

    counted = [dict.fromkeys(Status, 0) for _ in campaign.tallies]
    for vin, member in campaign.members.items():
        counted[member.wave][campaign.standings[vin].status] += 1
    assert [dict.fromkeys(Status, 0) | dict(tally) for tally in campaign.tallies] == counted


FIRST, SECOND = RELEASES[0], RELEASES[1]
ONCE_MORE = Retry(times=1, after="1h")
# attempts, then the status and the release or record that caused it
STANDINGS = [
    ([Attempt(FIRST)], Status.RELEASED, FIRST),
    ([Attempt(FIRST, Ending.DELIVERED, 7)], Status.DELIVERED, 7),
    ([Attempt(FIRST, Ending.WITHDRAWN, 7)], Status.WAITING, 7),
    ([Attempt(FIRST, Ending.WITHDRAWN, 7), Attempt(SECOND)], Status.RELEASED, SECOND),
    # a late acknowledgement: the vehicle has it, so it is not released again
    ([Attempt(FIRST, Ending.WITHDRAWN, 7), Attempt(FIRST, Ending.DELIVERED, 9)], Status.DELIVERED, 9),
    ([Attempt(FIRST, Ending.DELIVERED, 9), Attempt(SECOND, Ending.WITHDRAWN, 7)], Status.DELIVERED, 9),
    # its own second release replaces the first in the queue
    ([Attempt(FIRST, Ending.SUPERSEDED, 7), Attempt(SECOND)], Status.RELEASED, SECOND),
    ([Attempt(FIRST, Ending.CANCELLED, 7)], Status.CANCELLED, 7),
    ([Attempt(FIRST, Ending.FAILED, 7)], Status.WAITING, 7),
    ([Attempt(FIRST, Ending.FAILED, 7), Attempt(SECOND, Ending.FAILED, 9)], Status.FAILED, 9),
    # the same outcome recorded twice counts once: the first record
    ([Attempt(FIRST, Ending.FAILED, 9), Attempt(FIRST, Ending.FAILED, 7)], Status.WAITING, 7),
]


@pytest.mark.parametrize(("words", "status", "since"), STANDINGS)
def test_the_state_of_a_target_follows_from_its_attempts(words: list[Attempt], status: Status, since: int) -> None:
    attempts: tuple[Attempt, ...] = ()
    for word in words:
        attempts = joined(attempts, word)

    found = standing(attempts, ONCE_MORE)

    assert (found.status, found.since) == (status, since)


def test_a_failed_target_waits_for_its_retry_or_stays_failed() -> None:
    failed = (Attempt(FIRST, Ending.FAILED, SECOND),)

    assert standing(failed, ONCE_MORE) == Standing(Status.WAITING, SECOND, unix_ms_of(SECOND) + 3_600_000)
    assert standing(failed, None) == Standing(Status.FAILED, SECOND)
