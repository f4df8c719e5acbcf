"""The state is a function of the set of facts: any order, any repetition, any division into batches gives the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifold.campaigns.facts import Answer, Answered, Attempt, Ended, Ending, Fact, Recorded, Released, Silence, Terms, joined
from manifold.campaigns.fold import Campaign, fold
from manifold.campaigns.standing import Standing, Status, standing
from manifold.campaigns.success import Retry
from manifold.contracts import campaigns as r
from manifold.contracts.seq import seq_of, unix_ms_of
from tests.manifold.campaigns.plans import NOW, document, vins

NAMES = vins(4)
PLAN = document(number=4, waves=[{"name": "a", "size": 1}, {"name": "b", "size": "rest"}], retry={"times": 1, "after": "1h"})
RULES = {"rules": [{"name": "r1", "count": ["failed"], "over": 1}]}
ANSWERS = {"success": {"by": "answer", "within": "1m"}, "retry": {"times": 1, "after": "1h", "on": ["busy", "silent"]}}
BY = ("maps-47", "campaigner/0")

orders: st.SearchStrategy[r.Command] = st.sampled_from(
    [
        r.Propose("maps-47", "author", plan=PLAN),
        r.Propose("maps-47", "another", plan=PLAN | RULES),
        r.Propose("maps-47", "eve", plan=PLAN | ANSWERS),
        r.Silent(*BY, before_ms=NOW + 20_000),
        r.Silent(*BY, before_ms=NOW + 60_000),
        r.AddTargets("maps-47", "author", targets=(r.Target("EXTRA", "Asia/Tokyo", "a"),)),
        r.Approve("maps-47", "ann"),
        r.Approve("maps-47", "bob"),
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
        r.Retry("maps-47", "ann", ended=("failed", "expired")),
        r.Amend("maps-47", "ann", plan=PLAN | {"retry": {"times": 2, "after": "2h"}}),
        r.Amend("maps-47", "bob", plan={name: value for name, value in PLAN.items() if name != "retry"}),
    ]
)
RELEASES = tuple(seq_of(NOW + 30_000 * place, 0, 0) for place in range(3))


@st.composite
def histories(draw: st.DrawFn) -> list[Fact]:
    """Facts under seqs of their own, as several recorders may give them: the end of an entry can have the smaller seq."""
    facts: list[Fact] = [
        Released(seq, place % 2, place + 1, tuple(sorted(draw(st.sets(st.sampled_from(NAMES), min_size=1)))))
        for place, seq in enumerate(RELEASES[: draw(st.integers(0, 3))])
    ]
    numbers = iter(range(1, 1000))
    facts += [Recorded(seq_of(NOW + 5000 * next(numbers), 1, 0), order) for order in draw(st.lists(orders, max_size=12))]
    for _ in range(draw(st.integers(0, 12))):
        name, release, ending = draw(st.tuples(st.sampled_from(NAMES), st.sampled_from(RELEASES), st.sampled_from(Ending)))
        facts.append(Ended(seq_of(NOW - 20_000 + 5000 * next(numbers), 2, 0), name, release, ending))
        if draw(st.booleans()):
            answer, stranger, claimed = (
                draw(st.sampled_from(Answer)),
                draw(st.sampled_from(NAMES)),
                draw(st.sampled_from(RELEASES)),
            )
            facts.append(Answered(seq_of(NOW - 20_000 + 5000 * next(numbers), 3, 0), name, release, answer))
            facts.append(Answered(seq_of(NOW - 20_000 + 5000 * next(numbers), 4, 0), stranger, claimed, answer))
    return facts


@settings(max_examples=80, deadline=None)
@given(histories(), st.data())
def test_any_order_any_repetition_and_any_batches_give_the_same_state(facts: list[Fact], data: st.DataObject) -> None:
    mixed = data.draw(st.permutations(facts + facts[::2]))
    cut = data.draw(st.integers(0, len(mixed)))

    in_batches = fold(fold(Campaign(), mixed[:cut]), mixed[cut:])

    assert in_batches == fold(Campaign(), facts)


@settings(max_examples=80, deadline=None)
@given(histories())
def test_the_tallies_count_every_target_once(facts: list[Fact]) -> None:
    campaign = fold(Campaign(), facts)

    counted = [dict.fromkeys(Status, 0) for _ in campaign.tallies]
    for vin in campaign.roster.vins:
        counted[campaign.roster.wave_of(vin)][campaign.standing_of(vin).status] += 1
    assert list(campaign.tallies) == counted


@settings(max_examples=80, deadline=None)
@given(histories())
def test_the_columns_say_what_the_attempts_of_each_target_say(facts: list[Fact]) -> None:
    campaign = fold(Campaign(), facts)

    attempts: dict[str, tuple[Attempt, ...]] = {}
    for fact in sorted(facts, key=lambda fact: isinstance(fact, Answered)):
        if isinstance(fact, Released):
            attempts |= {vin: joined(attempts.get(vin, ()), Attempt(fact.seq)) for vin in fact.vins}
        elif isinstance(fact, Ended):
            attempts[fact.vin] = joined(attempts.get(fact.vin, ()), Attempt(fact.release, fact.ending, fact.seq))
        elif isinstance(fact, Answered) and any(fact.release == known.release for known in attempts.get(fact.vin, ())):
            word = Attempt(fact.release, answer=fact.answer, answered_seq=fact.seq)
            attempts[fact.vin] = joined(attempts.get(fact.vin, ()), word)
    decided = campaign.decided
    for vin in campaign.roster.vins:
        expected = standing(attempts[vin], decided.terms) if vin in attempts else Standing(Status.WAITING)
        assert campaign.standing_of(vin) == expected


FIRST, SECOND = RELEASES[0], RELEASES[1]
ONCE_MORE = Terms(Retry(times=1, after="1h"))
# attempts, then the status and the release or record that made it so
STANDINGS = [
    ([Attempt(FIRST)], Status.RELEASED, FIRST),
    ([Attempt(FIRST, Ending.DELIVERED, 7)], Status.DELIVERED, 7),
    ([Attempt(FIRST, Ending.WITHDRAWN, 7)], Status.WAITING, 7),
    ([Attempt(FIRST, Ending.WITHDRAWN, 7), Attempt(SECOND)], Status.RELEASED, SECOND),
    # a late acknowledgement: the vehicle has it, so it is not released again
    ([Attempt(FIRST, Ending.WITHDRAWN, 7), Attempt(FIRST, Ending.DELIVERED, 9)], Status.DELIVERED, 9),
    ([Attempt(FIRST, Ending.DELIVERED, 9), Attempt(SECOND, Ending.WITHDRAWN, 7)], Status.DELIVERED, 9),
    # its own second release takes the place of the first in the queue
    ([Attempt(FIRST, Ending.SUPERSEDED, 7), Attempt(SECOND)], Status.RELEASED, SECOND),
    ([Attempt(FIRST, Ending.CANCELLED, 7)], Status.CANCELLED, 7),
    ([Attempt(FIRST, Ending.FAILED, 7)], Status.WAITING, 7),
    ([Attempt(FIRST, Ending.FAILED, 7), Attempt(SECOND, Ending.FAILED, 9)], Status.FAILED, 9),
    # the same outcome recorded twice counts once: the first record
    ([Attempt(FIRST, Ending.FAILED, 9), Attempt(FIRST, Ending.FAILED, 7)], Status.WAITING, 7),
]


@pytest.mark.parametrize(("words", "status", "since"), STANDINGS)
def test_the_standing_of_a_target_follows_from_its_attempts(words: list[Attempt], status: Status, since: int) -> None:
    attempts: tuple[Attempt, ...] = ()
    for word in words:
        attempts = joined(attempts, word)

    found = standing(attempts, ONCE_MORE)

    assert (found.status, found.since) == (status, since)


def test_a_failed_target_waits_for_its_retry_and_without_one_has_failed() -> None:
    failed = (Attempt(FIRST, Ending.FAILED, SECOND),)

    assert standing(failed, ONCE_MORE) == Standing(Status.WAITING, SECOND, unix_ms_of(SECOND) + 3_600_000)
    assert standing(failed, Terms()) == Standing(Status.FAILED, SECOND)


ACKNOWLEDGED = Attempt(FIRST, Ending.DELIVERED, SECOND)
BY_ANSWER = [
    (ACKNOWLEDGED, (), Status.RELEASED, FIRST),  # its answer is awaited
    (ACKNOWLEDGED, (Silence(9, unix_ms_of(SECOND) - 1), Silence(11, unix_ms_of(SECOND))), Status.SILENT, 11),
    (Attempt(FIRST, Ending.DELIVERED, SECOND, Answer.DONE, 9), (Silence(7, NOW << 1),), Status.CONFIRMED, 9),
    (Attempt(FIRST, None, 0, Answer.DONE, 9), (), Status.CONFIRMED, 9),  # the acknowledgement got lost
    (Attempt(FIRST, Ending.WITHDRAWN, 7, Answer.DONE, 9), (), Status.CONFIRMED, 9),
    (Attempt(FIRST, Ending.DELIVERED, 7, Answer.REFUSED, 9), (), Status.REJECTED, 9),
    (Attempt(FIRST, Ending.DELIVERED, 7, Answer.BUSY, 9), (), Status.BUSY, 9),
    (Attempt(FIRST, Ending.DELIVERED, 7, Answer.FAILED, 9), (), Status.FAILED, 9),
    (Attempt(FIRST, Ending.FAILED, 7), (), Status.FAILED, 7),
]


@pytest.mark.parametrize(("attempt", "silences", "status", "since"), BY_ANSWER)
def test_in_a_campaign_that_asks_for_answers_the_answer_settles(
    attempt: Attempt, silences: tuple[Silence, ...], status: Status, since: int
) -> None:
    found = standing((attempt,), Terms(by_answer=True, silences=silences))

    assert (found.status, found.since) == (status, since)


def test_an_answer_to_a_message_that_a_vehicle_was_never_sent_counts_nowhere() -> None:
    """A vehicle may answer with any seq: it would be confirmed before its release, or in place of it."""
    given_orders: list[r.Command] = [r.Propose("maps-47", "eve", plan=PLAN | ANSWERS), r.Approve("maps-47", "ann"), r.Start(*BY)]
    recorded = [Recorded(seq_of(NOW + place, 1, 0), order) for place, order in enumerate(given_orders)]
    released = Released(FIRST, 0, 1, (NAMES[0],))
    answers = [Answered(FIRST + 9 + place, vin, FIRST + place // 4, Answer.DONE) for place, vin in enumerate(NAMES * 2)]

    campaign = fold(Campaign(), [*recorded, *answers, released])

    assert campaign.standing_of(NAMES[0]).status is Status.CONFIRMED
    assert [campaign.standing_of(vin).status for vin in NAMES[1:]] == [Status.WAITING] * 3
    assert campaign == fold(fold(Campaign(), answers), [released, *recorded])


def test_where_no_answers_are_asked_for_they_change_nothing() -> None:
    refused = Attempt(FIRST, Ending.DELIVERED, 7, Answer.REFUSED, 9)

    assert standing((refused,), Terms()) == Standing(Status.DELIVERED, 7)


def test_the_strongest_answer_counts_whenever_it_came() -> None:
    attempts: tuple[Attempt, ...] = (ACKNOWLEDGED,)
    for answer, seq in [(Answer.DONE, 8), (Answer.BUSY, 7), (Answer.DONE, 9)]:
        attempts = joined(attempts, Attempt(FIRST, answer=answer, answered_seq=seq))

    assert standing(attempts, Terms(by_answer=True)) == Standing(Status.CONFIRMED, 8)
