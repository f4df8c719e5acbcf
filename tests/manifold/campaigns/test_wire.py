"""A release is an ordinary trigger and is read back from the record as the same fact."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifold.campaigns.facts import Answered, Ended, Ending, Released
from manifold.campaigns.parsing import plan_of
from manifold.campaigns.plan import Plan
from manifold.campaigns.step import Release
from manifold.campaigns.wire import answered, ended, released, trigger_payload
from manifold.contracts.answers import Answer, VehicleAnswer, parse_answer
from manifold.contracts.messages import Trigger, parse_trigger
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from tests.manifold.campaigns.plans import document, vins

names = st.lists(st.sampled_from(vins(20)), min_size=1, unique=True).map(tuple)


@settings(deadline=None)
@given(st.builds(Release, st.integers(0, 99), st.integers(1, 1 << 40), st.none() | st.integers(0, 1 << 45), names))
def test_a_release_round_trips_through_its_trigger(release: Release) -> None:
    plan = plan_of(document())
    assert isinstance(plan, Plan)

    trigger = parse_trigger(trigger_payload(plan, release), max_ids=100, max_data_bytes=100, is_release=True)

    assert isinstance(trigger, Trigger)
    assert (trigger.request_id, trigger.data_id) == (plan.campaign, plan.data_id)
    assert released(7, trigger) == Released(7, release.wave, release.step, release.vins, release.until_ms)


def test_a_platform_trigger_is_not_a_release() -> None:
    trigger = parse_trigger(b'{"ids": ["A"], "request_id": "r", "data_id": "d"}', max_ids=1, max_data_bytes=1)

    assert isinstance(trigger, Trigger)
    assert released(7, trigger) is None


@pytest.mark.parametrize("outcome", Outcome)
def test_every_queue_outcome_is_an_ending(outcome: Outcome) -> None:
    assert ended(9, OutcomeRecord("A", 7, outcome, ended_ms=1)) == Ended(9, "A", 7, Ending(outcome.value))


@pytest.mark.parametrize("answer", Answer)
def test_every_answer_of_a_vehicle_is_a_fact(answer: Answer) -> None:
    said = parse_answer("agent/A/proxy/response/maps-47", b'{"seq": 7, "status": "' + answer.encode() + b'"}')

    assert isinstance(said, VehicleAnswer)
    assert answered(9, said) == Answered(9, "A", 7, answer)
