"""An amendment keeps what has been released, and needs a new approval exactly when it allows more."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from manifold.campaigns.amendments import refusal, widened
from manifold.campaigns.decided import Decided, Stage
from manifold.campaigns.decisions import decide
from manifold.campaigns.facts import Released
from manifold.campaigns.gates import is_met
from manifold.campaigns.membership import assign
from manifold.campaigns.parsing import plan_of
from manifold.campaigns.plan import Gate, Plan, Rate, Wave
from manifold.campaigns.quantities import instant_ms
from manifold.campaigns.rehearsal import Fleet
from manifold.campaigns.standing import Status
from manifold.campaigns.windows import Window
from manifold.contracts import campaigns as r
from manifold.contracts.messages import Refused
from manifold.contracts.seq import seq_of
from tests.manifold.campaigns.plans import ALWAYS, NOW, POLICY, document, fleet_here, proposed, vins
from tests.manifold.campaigns.test_windows import is_inside

MINUTE, HOUR = 60_000, 3_600_000
NAME = "maps-47"
FIRST, SECOND, REST = {"name": "first", "size": 2}, {"name": "second", "size": 3}, {"name": "rest", "size": "rest"}
OLD: dict[str, Any] = {
    "waves": [FIRST, SECOND, REST],
    "rate": 60,
    "window": {"from": "22:00", "to": "05:00"},
    "rules": [{"name": "r1", "count": ["failed"], "over": "2%", "at_least": 100}],
    "retry": {"times": 2, "after": "6h"},
}


def plan(**fields: Any) -> Plan:
    made = plan_of(document(**(OLD | fields)))
    assert isinstance(made, Plan), made
    return made


def rule(**fields: Any) -> dict[str, Any]:
    return {"rules": [OLD["rules"][0] | fields]}


def gate(**fields: Any) -> dict[str, Any]:
    return {"waves": [FIRST, SECOND | {"gate": fields}, REST]}


REFUSALS = [
    ({"data_id": "map_48"}, "data_id: is not what it was and cannot be amended; propose another campaign"),
    ({"targets": {"file": "a.csv"}}, "targets: is not what it was"),
    ({"success": {"by": "answer", "within": "1h"}}, "success: is not what it was"),
    ({"away": "queue"}, "away: is not what it was"),
    ({"approve": {"people": 2}}, "approve: is not what it was"),
    ({"waves": [FIRST | {"gate": {"soak": "1h"}}, SECOND, REST]}, "waves: wave 1 is open, and those before it cannot be"),
    ({"waves": [FIRST, SECOND | {"size": 4}, REST]}, "waves: those that the plan had must stay"),
    ({"waves": [FIRST, REST]}, "waves: those that the plan had must stay"),
    ({"waves": [FIRST, {"name": "new", "size": 1}, SECOND, REST]}, "waves[1]: is not behind the open wave 1"),
    ({"waves": [FIRST, SECOND, {"name": "new", "vins": ["A"]}, REST]}, "waves[2].vins: may belong to a wave that was open"),
    ({"waves": [FIRST, SECOND, {"name": "new", "size": 5}, REST]}, 'waves[3].size "rest": no target is left for this wave'),
    ({"waves": [FIRST, SECOND, {"name": "new", "size": 1}, REST]}, None),
    (gate(soak="1h"), None),
    ({"rate": 600, "window": None, "rules": [], "retry": None, "ends": "2026-12-30T00:00:00Z"}, None),
]


@pytest.mark.parametrize(("fields", "reason"), REFUSALS)
def test_an_amendment_is_refused_that_would_change_what_was_released(fields: dict[str, Any], reason: str | None) -> None:
    told = refusal(plan(), plan(**fields), 1, [r.Target(vin) for vin in vins(10)])

    assert told is None if reason is None else told is not None and told.startswith(reason)


WIDENED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({}, ()),
    ({"rate": 59}, ()),
    ({"rate": 61}, ("rate",)),
    ({"rate": None}, ("rate",)),
    ({"rate": {"from": 10, "times": 2, "every": 9, "up_to": 60}}, ()),
    ({"rate": {"from": 10, "times": 2, "every": 9, "up_to": 61}}, ("rate",)),
    ({"window": {"from": "22:30", "to": "05:00"}}, ()),
    ({"window": {"from": "22:00", "to": "05:01"}}, ("window",)),
    ({"window": {"from": "21:59", "to": "05:00"}}, ("window",)),
    ({"window": {"from": "22:00", "to": "05:00", "days": ["mon"]}}, ()),
    ({"window": {"from": "22:00", "to": "05:00", "zone": "Asia/Tokyo"}}, ("window",)),
    ({"window": None}, ("window",)),
    (rule(over="1%"), ()),
    (rule(over="2.01%"), ("rules",)),
    (rule(at_least=101), ("rules",)),
    (rule(then="cancel"), ()),
    (rule(then="alert"), ("rules",)),
    (rule(count=["failed", "expired"]), ()),
    (rule(**{"in": "wave"}), ("rules",)),
    ({"rules": [OLD["rules"][0], {"name": "r2", "count": ["failed"], "over": 5}]}, ()),
    ({"rules": []}, ("rules",)),
    ({"retry": None}, ()),
    ({"retry": {"times": 3, "after": "6h"}}, ("retry",)),
    ({"retry": {"times": 2, "after": "5h"}}, ("retry",)),
    ({"retry": {"times": 2, "after": "6h", "on": ["failed", "busy"]}}, ("retry",)),
    (gate(success="90%"), ()),
    (gate(known="90%"), ("waves",)),
    ({"ends": "2026-12-19T00:00:00Z"}, ()),
    ({"ends": "2026-12-21T00:00:00Z", "rate": 100}, ("rate", "ends")),
]


@pytest.mark.parametrize(("fields", "names"), WIDENED)
def test_the_fields_that_allow_more_are_named(fields: dict[str, Any], names: tuple[str, ...]) -> None:
    assert widened(plan(), plan(**fields)) == names


ADDED = {"name": "added", "size": 4}


@pytest.mark.parametrize(
    ("old_waves", "new_waves", "names"),
    [
        ([FIRST, SECOND, REST], [FIRST, SECOND, ADDED, REST], ()),  # takes its targets from the rest
        ([FIRST, SECOND], [FIRST, SECOND, REST], ("waves",)),
        ([FIRST, SECOND], [FIRST, ADDED, SECOND], ("waves",)),
    ],
)
def test_an_added_wave_allows_more_if_targets_were_in_no_wave(old_waves: Any, new_waves: Any, names: tuple[str, ...]) -> None:
    assert widened(plan(waves=old_waves), plan(waves=new_waves)) == names


rates = (
    st.none() | st.integers(1, 20) | st.builds(Rate, st.integers(1, 5), st.integers(2, 4), st.integers(1, 9), st.integers(5, 20))
)
half_hours = st.integers(0, 47)
shifts = st.integers(-3, 3)
days = st.sampled_from([("mon",), ("mon", "tue"), ("fri", "sat", "sun")])


def clock(half_hour: int) -> str:
    return f"{half_hour % 48 // 2:02}:{half_hour % 2 * 30:02}"


@settings(deadline=None)
@given(rates, rates, st.integers(0, 200))
def test_a_rate_that_is_not_widened_never_allows_more(old: int | Rate | None, new: int | Rate | None, successes: int) -> None:
    before, after = (Plan(NAME, "d", plan().targets, "2027-01-01T00:00:00Z", rate=rate) for rate in (old, new))

    if not widened(before, after):
        assert after.per_minute(successes) <= before.per_minute(successes)


@settings(deadline=None, max_examples=500)
@given(half_hours, half_hours, shifts, shifts, days, days, st.integers(0, 7 * 48))
def test_a_window_that_is_not_widened_opens_only_inside_the_old_one(
    opens: int, closes: int, opens_by: int, closes_by: int, old_days: Any, new_days: Any, half_hour: int
) -> None:
    assume(opens != closes and (opens + opens_by - closes - closes_by) % 48)
    before = Window(clock(opens), clock(closes), old_days, "Europe/Berlin")
    after = Window(clock(opens + opens_by), clock(closes + closes_by), new_days, "Europe/Berlin")
    plans = [Plan(NAME, "d", plan().targets, "2027-01-01T00:00:00Z", window=window) for window in (before, after)]
    now = instant_ms("2027-01-04T00:00:00Z") + half_hour * 30 * MINUTE

    if not widened(*plans) and is_inside(after, "Europe/Berlin", now):
        assert is_inside(before, "Europe/Berlin", now)


shares = st.sampled_from(["50%", "90%", "100%"])
some_gates = st.builds(Gate, shares, shares, shares, st.sampled_from(["0s", "1h"]), st.integers(0, 1))


@settings(deadline=None)
@given(some_gates, some_gates, st.lists(st.integers(0, 20), min_size=4, max_size=4))
def test_a_gate_that_is_not_widened_holds_only_where_the_old_one_does(old: Gate, new: Gate, numbers: list[int]) -> None:
    before, after = (
        Plan(NAME, "d", plan().targets, "2027-01-01T00:00:00Z", (Wave("a", size="rest", gate=each),)) for each in (old, new)
    )
    success, known, released, targets = sorted(numbers)
    counts = {"targets": targets, "released": released, "known": known, "success": success}

    if not widened(before, after) and is_met(new, counts):
        assert is_met(old, counts)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 3), st.integers(0, 1))
def test_added_waves_leave_the_members_of_opened_waves_as_they_were(size: int, open_wave: int) -> None:
    listed = [r.Target(vin) for vin in vins(10)]
    added = [FIRST, SECOND, REST]
    added.insert(open_wave + 1, {"name": "new", "size": size})
    amended = plan(waves=added)
    assert refusal(plan(), amended, open_wave, listed) is None

    before, after = assign(plan(), listed), assign(amended, listed)

    assert not isinstance(before, Refused)
    assert not isinstance(after, Refused)
    assert before[: open_wave + 1] == after[: open_wave + 1]


TWO_PEOPLE = document(**OLD, approve={"people": 2, "not_the_author": True})
WIDER = TWO_PEOPLE | {"rate": 600}
RUNNING: list[r.Command] = [
    r.Propose(NAME, "author", plan=TWO_PEOPLE),
    r.Approve(NAME, "ann"),
    r.Approve(NAME, "bob"),
    r.Start(NAME, POLICY.by),
]


def decided(*orders: r.Command) -> Decided:
    return decide({seq_of(NOW + place, 0, 0): order for place, order in enumerate(orders)})


def rate_of(state: Decided) -> object:
    assert state.plan is not None
    return state.plan.rate


def test_an_amendment_that_allows_more_has_effect_when_people_have_approved_it() -> None:
    amended = [*RUNNING, r.Amend(NAME, "ann", plan=WIDER)]

    assert (rate_of(decided(*amended)), decided(*amended).stage) == (60, Stage.RUNNING)
    by_ann = decided(*amended, r.Approve(NAME, "ann"))
    assert by_ann.ignored[-1][1] == "ann is the author; another person has to approve"
    assert rate_of(decided(*amended, r.Approve(NAME, "bob"))) == 60
    both = decided(*amended, r.Approve(NAME, "bob"), r.Approve(NAME, "eve"))
    assert (rate_of(both), both.amendment, both.ignored) == (600, None, ())


def test_an_amendment_that_allows_less_has_effect_at_once() -> None:
    state = decided(*RUNNING, r.Amend(NAME, "ann", plan=WIDER), r.Amend(NAME, "bob", plan=TWO_PEOPLE | {"rate": 6}))

    assert (rate_of(state), state.amendment, sorted(state.approved_by)) == (6, None, ["ann", "bob"])


def test_a_proposal_that_is_amended_to_allow_more_loses_its_approvals() -> None:
    proposal, approval = RUNNING[:2]

    wider = decided(proposal, approval, r.Amend(NAME, "bob", plan=WIDER))
    narrower = decided(proposal, approval, r.Amend(NAME, "bob", plan=TWO_PEOPLE | {"rate": 6}))

    assert (rate_of(wider), sorted(wider.approved_by), sorted(wider.authors)) == (600, [], ["author", "bob"])
    assert (rate_of(narrower), sorted(narrower.approved_by)) == (6, ["ann"])


def test_a_plan_that_is_none_is_no_amendment() -> None:
    state = decided(*RUNNING, r.Amend(NAME, "ann", plan=TWO_PEOPLE | {"rate": 0}))

    assert state.ignored[-1][1].startswith("rate 0: must be 1 to 1000000")


def test_a_lowered_rate_holds_from_its_record_on() -> None:
    world = proposed(document(number=30, rate=10), fleet_here(30))
    world.run(NOW + 30_000)
    world.order(r.Amend(NAME, "ann", plan=document(number=30, rate=2)))

    world.run(NOW + 5 * MINUTE)

    assert world.campaign.decided.plan is not None
    assert world.campaign.total(Status.DELIVERED) == 10 + 4 * 2


def test_an_added_wave_takes_targets_of_those_behind_it() -> None:
    waves = [{"name": "first", "size": 2, "gate": {"approve": 1}}, {"name": "rest", "size": "rest"}]
    world = proposed(document(waves=waves), fleet_here(10))
    world.run(NOW + 1)
    first = set(world.campaign.roster.vins_of(0))

    world.order(r.Amend(NAME, "ann", plan=document(waves=[waves[0], {"name": "new", "size": 5}, waves[1]])))
    world.run(NOW + HOUR)

    roster = world.campaign.roster
    assert [len(roster.vins_of(wave)) for wave in range(3)] == [2, 5, 3]
    assert set(roster.vins_of(0)) == first
    assert (world.campaign.decided.stage, world.campaign.total(Status.DELIVERED)) == (Stage.COMPLETED, 10)


def test_targets_that_have_failed_are_released_again_by_an_order() -> None:
    fleet = Fleet(dict.fromkeys(vins(9), ALWAYS), failing=frozenset(vins(1)))  # the tenth never comes
    world = proposed(document(retry={"times": 1, "after": "1h"}), fleet)
    world.run(NOW + 5 * HOUR)
    assert world.campaign.total(Status.FAILED) == 1

    world.order(r.Retry(NAME, "ann", why="the garage has been there"))
    assert world.campaign.status_of(vins(1)[0]) is Status.WAITING
    world.run(NOW + 9 * HOUR)

    again = [release.at_ms - NOW for release in world.facts if isinstance(release, Released) and vins(1)[0] in release.vins]
    assert again == [0, HOUR + 1000, 5 * HOUR, 6 * HOUR + 1000]  # its retries are counted from the order
    assert world.campaign.total(Status.FAILED) == 1


def test_a_campaign_that_is_over_tries_nobody_again() -> None:
    done = decided(*RUNNING, r.Complete(NAME, POLICY.by), r.Retry(NAME, "ann"))

    assert done.ignored[-1][1] == "the campaign is completed, because every target has settled"
    assert done.again == ()
