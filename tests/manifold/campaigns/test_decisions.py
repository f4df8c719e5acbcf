"""Orders determine the stage of a campaign; an order that does not fit has no effect and a reason."""

import pytest

from manifold.campaigns.decided import Decided, Stage
from manifold.campaigns.decisions import decide
from manifold.contracts import campaigns as r
from manifold.contracts.messages import Refused
from manifold.contracts.seq import seq_of
from tests.manifold.campaigns.plans import NOW, document

WAVES = [{"name": "a", "size": 1}, {"name": "b", "size": "rest"}]
PLAN = document(approve={"people": 2, "not_the_author": True}, waves=WAVES)
NAME, CAMPAIGNER = "maps-47", "campaigner/0"
PROPOSE = r.Propose(NAME, "author", plan=PLAN)
Orders = list[r.Command]
PROPOSED: Orders = [PROPOSE]
APPROVED: Orders = [*PROPOSED, r.Approve(NAME, "ann"), r.Approve(NAME, "bob")]
RUNNING: Orders = [*APPROVED, r.Start(NAME, CAMPAIGNER)]
HELD: Orders = [*RUNNING, r.Hold(NAME, CAMPAIGNER, wave=0)]
SECOND: Orders = [*RUNNING, r.Pass(NAME, CAMPAIGNER, wave=0)]
PAUSED: Orders = [*HELD, r.Pause(NAME, "ann")]
STOPPED: Orders = [*PROPOSED, r.Pause(NAME, "ann")]  # before its start
TRIPPED: Orders = [*RUNNING, r.Pause(NAME, CAMPAIGNER, rule="r1")]
CANCELLED: Orders = [*RUNNING, r.Cancel(NAME, "ann")]
TOKEN = "0123456789abcdef" * 2


def decided(orders: Orders) -> Decided:
    return decide({seq_of(NOW + place, 0, 0): order for place, order in enumerate(orders)})


STAGES: list[tuple[Orders, Stage]] = [
    (PROPOSED, Stage.PROPOSED),
    ([*PROPOSED, r.Refuse(NAME, "ann")], Stage.REFUSED),
    (APPROVED, Stage.PROPOSED),
    (RUNNING, Stage.RUNNING),
    (HELD, Stage.HELD),
    ([*HELD, r.Unhold(NAME, CAMPAIGNER, wave=0)], Stage.RUNNING),
    ([*HELD, r.Pass(NAME, CAMPAIGNER, wave=0)], Stage.RUNNING),
    (PAUSED, Stage.PAUSED),
    ([*PAUSED, r.Resume(NAME, "ann")], Stage.HELD),
    ([*TRIPPED, r.Resume(NAME, "ann", accept=("r1",))], Stage.RUNNING),
    (CANCELLED, Stage.CANCELLED),
    ([*PROPOSED, r.Cancel(NAME, "ann")], Stage.CANCELLED),
    (STOPPED, Stage.PAUSED),
    ([*APPROVED, r.Pause(NAME, "ann")], Stage.PAUSED),
    ([*STOPPED, r.Resume(NAME, "ann")], Stage.PROPOSED),
    ([*STOPPED, r.Refuse(NAME, "ann")], Stage.REFUSED),
    ([*STOPPED, r.Amend(NAME, "ann", plan=PLAN | {"rate": 5}), r.Resume(NAME, "ann")], Stage.PROPOSED),
    ([*STOPPED, r.Approve(NAME, "ann"), r.Approve(NAME, "bob"), r.Resume(NAME, "ann"), r.Start(NAME, CAMPAIGNER)], Stage.RUNNING),
    *(([*orders, r.Cancel(NAME, "ann")], Stage.CANCELLED) for orders in (APPROVED, STOPPED, HELD, SECOND, PAUSED, TRIPPED)),
    ([*RUNNING, r.Complete(NAME, CAMPAIGNER)], Stage.COMPLETED),
    ([*PAUSED, r.Complete(NAME, CAMPAIGNER, because="ends")], Stage.COMPLETED),
]


def late(*places: float) -> list[tuple[float, r.Command]]:
    """Orders of a running campaign by the places of their seqs: pauses, and a resume of the one at place 4."""
    resume = r.Resume(NAME, "ann", ends=(place_seq(4),))
    return [*enumerate(RUNNING), *((place, r.Pause(NAME, f"p{place}")) for place in places), (6, resume)]


def place_seq(place: float) -> int:
    return seq_of(NOW + round(place * 10), 0, 0)


@pytest.mark.parametrize(
    ("pauses", "stage"),
    [
        ((4,), Stage.RUNNING),
        pytest.param((4, 5), Stage.PAUSED, id="another, by a clock between pause and resume"),
        pytest.param((3.5, 4), Stage.PAUSED, id="another, by a clock before the pause"),
        pytest.param((4, 7), Stage.PAUSED, id="another, after the resume"),
    ],
)
def test_a_resume_ends_the_pauses_that_its_author_knew_whatever_the_clocks(pauses: tuple[float, ...], stage: Stage) -> None:
    orders = {place_seq(place): order for place, order in late(*pauses)}

    assert decide(orders).stage is stage


@pytest.mark.parametrize(("orders", "stage"), STAGES)
def test_orders_determine_the_stage(orders: Orders, stage: Stage) -> None:
    assert (decided(orders).stage, decided(orders).ignored) == (stage, ())


OBJECTIONS: list[tuple[Orders, r.Command, str]] = [
    ([], r.Pause(NAME, "ann"), "the campaign is new, because nothing is proposed"),
    ([], r.Propose(NAME, "author", plan=PLAN | {"rate": 0}), "rate 0: must be 1 to 1000000"),
    ([], r.Propose("other", "author", plan=PLAN), "campaign 'other' proposes the plan of 'maps-47'"),
    (PROPOSED, r.Propose(NAME, "ann", plan=PLAN), "the campaign is proposed, because author proposed it"),
    (PROPOSED, r.Start(NAME, CAMPAIGNER), "the plan is not approved"),
    ([*PROPOSED, r.Approve(NAME, "ann"), r.Approve(NAME, "ann")], r.Start(NAME, CAMPAIGNER), "the plan is not approved"),
    (PROPOSED, r.Approve(NAME, "author"), "author is the author; another person has to approve"),
    (APPROVED, r.AddTargets(NAME, "author", targets=(r.Target("A"),)), "the list is frozen"),
    (RUNNING, r.Approve(NAME, "ann"), "the plan is approved already; name the wave whose gate is meant"),
    (RUNNING, r.Approve(NAME, "ann", wave=1), "wave 1: the open wave is 0"),
    (RUNNING, r.Hold(NAME, CAMPAIGNER, wave=1), "wave 1: the open wave is 0"),
    (RUNNING, r.Pass(NAME, "ann", wave=0), "why is missing; a person who opens a gate says why"),
    (SECOND, r.Pass(NAME, "ann", wave=0, why="it is fine"), "wave 0: the open wave is 1"),
    (SECOND, r.Pass(NAME, "ann", wave=1, why="it is fine"), "wave 1 is the last; there is none to open"),
    (PAUSED, r.Pass(NAME, "ann", wave=0, why="it is fine"), "the campaign is paused, because paused by ann"),
    (RUNNING, r.Resume(NAME, "ann"), "the campaign is running, because it is approved"),
    (RUNNING, r.Amend(NAME, "ann", plan=PLAN | {"data_id": "other"}), "data_id: is not what it was"),
    (CANCELLED, r.Amend(NAME, "ann", plan=PLAN), "the campaign is cancelled"),
    (PROPOSED, r.Retry(NAME, "ann"), "the campaign is proposed"),
    (PROPOSED, r.Resume(NAME, "ann"), "the campaign is proposed"),
    (STOPPED, r.Pause(NAME, "ann"), "the campaign is paused, because paused by ann"),
    (STOPPED, r.Retry(NAME, "ann"), "the campaign is paused, because paused by ann"),
    (STOPPED, r.Complete(NAME, CAMPAIGNER, because="ends"), "the campaign is paused, because paused by ann"),
    (STOPPED, r.Approve(NAME, "author"), "author is the author; another person has to approve"),
    ([*APPROVED, r.Pause(NAME, "ann")], r.Start(NAME, CAMPAIGNER), "the campaign is paused, because paused by ann"),
    (TRIPPED, r.Resume(NAME, "ann"), "accept lacks r1; name the rules that tripped"),
    (CANCELLED, r.Resume(NAME, "ann"), "the campaign is cancelled, because cancelled by ann"),
    (RUNNING, r.Pause(NAME, "ann", if_version=3), "if_version 3: the campaign is at version 4; look at it again"),
    ([*RUNNING, r.Note(NAME, "ann", token=TOKEN)], r.Note(NAME, "ann", token=TOKEN), "repeats an order"),
    ([*RUNNING, r.Note(NAME, "ann", token=TOKEN)], r.Pause(NAME, "ann", token=TOKEN), "its token was used for another order"),
    (
        [*RUNNING, r.Fence(NAME, CAMPAIGNER, epoch=2)],
        r.Hold(NAME, CAMPAIGNER, epoch=1),
        "epoch 1: another campaigner has taken over",
    ),
]


@pytest.mark.parametrize(("before", "order", "reason"), OBJECTIONS, ids=[reason[:60] for *_, reason in OBJECTIONS])
def test_an_order_that_does_not_fit_has_no_effect_and_a_reason(before: Orders, order: r.Command, reason: str) -> None:
    known, after = decided(before), decided([*before, order])

    assert after.ignored[-1][1].startswith(reason)
    assert (after.stage, after.version, after.wave) == (known.stage, known.version, known.wave)


def test_a_list_may_be_completed_and_approved_during_a_pause() -> None:
    plan = {name: value for name, value in PLAN.items() if name != "targets"} | {"targets": {"file": "list.csv"}}
    propose, listed = r.Propose(NAME, "author", plan=plan), r.AddTargets(NAME, "author", targets=(r.Target("A"),))

    known = decided([propose, r.Pause(NAME, "ann"), listed, r.Approve(NAME, "ann")])

    assert (known.is_listed, known.approved_by, known.ignored) == (True, frozenset({"ann"}), ())


def test_a_resume_counts_its_accepted_rules_from_its_own_seq() -> None:
    resumed = decided([*TRIPPED, r.Resume(NAME, "ann", accept=("r1",))])

    assert (resumed.tripped, resumed.counts_from) == (frozenset(), {"r1": seq_of(NOW + len(TRIPPED), 0, 0)})


def test_a_record_is_canonical_json_and_round_trips() -> None:
    order = r.Pass(NAME, "ann", why="it is fine", wave=2, counts={"known": 95, "released": 100}, token=TOKEN)

    payload = r.encode(order)

    assert r.decode(payload) == order
    assert payload == (
        b'{"by":"ann","campaign":"maps-47","counts":{"known":95,"released":100},"do":"pass",'
        b'"token":"0123456789abcdef0123456789abcdef","wave":2,"why":"it is fine"}'
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b'{"do":"pause"}',
        b'{"do":"explode","campaign":"a","by":"ann"}',
        b'{"do":"pause","campaign":"a b","by":"ann"}',
        b'{"do":"pause","campaign":"a","by":""}',
        b'{"do":"pause","campaign":"a","by":"ann","token":"1"}',
        b'{"do":"pause","campaign":"a","by":"ann","speed":1}',
        b'{"do":"targets","campaign":"a","by":"ann","targets":[]}',
        b'{"do":"retry","campaign":"a","by":"ann","ended":[]}',
        b'{"do":"retry","campaign":"a","by":"ann","ended":["delivered"]}',
        b'{"do":"targets","campaign":"a","by":"ann","targets":[["a/b"]]}',
    ],
)
def test_a_malformed_record_is_refused(payload: bytes) -> None:
    assert isinstance(r.decode(payload), Refused)


def test_the_same_person_counts_once_whichever_system_names_them() -> None:
    once = decided([*PROPOSED, r.Approve(NAME, "ann"), r.Approve(NAME, "airflow/ann")])
    own = decided([*PROPOSED, r.Approve(NAME, "airflow/author")])

    assert (once.approved_by, once.is_approved) == (frozenset({"ann"}), False)
    assert own.ignored[0][1] == "author is the author; another person has to approve"


def test_a_proposal_takes_a_place_once_it_is_approved_paused_or_not() -> None:
    stop = r.Pause(NAME, "ann")
    places = [decided(orders).needs_decisions(NOW) for orders in (PROPOSED, STOPPED, APPROVED, [*APPROVED, stop], PAUSED)]

    assert places == [False, False, True, True, True]
