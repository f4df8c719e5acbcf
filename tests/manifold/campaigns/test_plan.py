"""A plan is accepted, or refused with field, value and remedy."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifold.campaigns.parsing import parse_plan, plan_sha256
from manifold.campaigns.plan import Plan, Rate
from manifold.contracts.messages import Refused
from tests.manifold.campaigns.plans import document

WAVE = {"name": "first", "size": "10%"}


def wave(**fields: Any) -> dict[str, Any]:
    return {"waves": [WAVE | fields, {"name": "rest", "size": "rest"}]}


def gate(**fields: Any) -> dict[str, Any]:
    return wave(gate=fields)


def rule(**fields: Any) -> dict[str, Any]:
    return {"rules": [{"name": "r1", "count": ["failed"], "over": "2%"} | fields]}


def rate(**fields: Any) -> dict[str, Any]:
    return {"rate": {"from": 60, "times": 2, "every": 100, "up_to": 6000} | fields}


def window(**fields: Any) -> dict[str, Any]:
    return {"window": {"from": "22:00", "to": "05:00"} | fields}


REFUSALS = [
    ({"campaign": "a/b"}, 'campaign "a/b": must be 1 to 128 printable ASCII characters without space, + # /'),
    ({"campaign": 7}, "campaign 7: expected `str`, got `int`"),
    ({"data_id": ""}, 'data_id "": must be 1 to 128 printable ASCII'),
    ({"ends": "2026-12-20"}, 'ends "2026-12-20": must be an ISO 8601 instant with its zone'),
    ({"ends": "9999-12-31T23:59:59-12:00"}, 'ends "9999-12-31T23:59:59-12:00": must be an ISO 8601 instant with its zone'),
    ({"ends": "0001-01-01T00:00:00+14:00"}, 'ends "0001-01-01T00:00:00+14:00": must be an ISO 8601 instant with its zone'),
    ({"starts": "soon"}, 'starts "soon": must be an ISO 8601 instant with its zone'),
    ({"starts": "2027-01-01T00:00:00Z"}, 'starts "2027-01-01T00:00:00Z": must be before ends'),
    ({"colour": "red"}, 'colour "red" is not a field of a plan; remove it or correct its name'),
    ({"away": "drop"}, 'away "drop": must be one of wait, queue'),
    ({"rate": 0}, "rate 0: must be 1 to 1000000 releases a minute; leave it out for no limit"),
    ({"rate": "60"}, 'rate "60": expected `int | object | null`, got `str`'),
    ({"targets": {}}, "targets 0 items: names 0 sources; name exactly one of vins, file, data, batch, campaign"),
    ({"targets": {"vins": ["A"], "file": "b"}}, "targets 2 items: names 2 sources; name exactly one of"),
    ({"targets": {"where": "map < 47"}}, 'targets.where "map < 47" is not a field of a plan'),
    ({"targets": {"file": "a.csv", "stay": "growing"}}, 'targets.stay "growing": must be one of frozen'),
    ({"targets": {"vins": []}}, "targets.vins 0 items: must be 1 to 10000 VINs; name a file for more"),
    ({"targets": {"vins": ["A", "B C"]}}, 'targets.vins[1] "B C": must be 1 to 64 printable ASCII'),
    ({"targets": {"vins": ["A", 7]}}, "targets.vins[1] 7: expected `str`, got `int`"),
    ({"targets": {"vins": ["A", "A"]}}, "targets.vins 2 items: names a VIN twice; name each once"),
    ({"targets": {"batch": "b"}}, "targets.ended null: belongs to batch or campaign; list there the outcomes"),
    (
        {"targets": {"batch": "b", "ended": ["failed", "confirmed"]}},
        'targets.ended[1] "confirmed": must be how vehicles of a batch ended: delivered, ',
    ),
    (
        {"targets": {"campaign": "c", "ended": ["withdrawn"]}},
        'targets.ended[0] "withdrawn": must be how vehicles of a campaign ended: waiting, ',
    ),
    ({"waves": []}, "waves 0 items: must name at least one wave"),
    ({"waves": [WAVE, WAVE]}, "waves 2 items: two have the same name; give each its own"),
    ({"waves": [{"name": "a", "size": "rest"}, WAVE]}, 'waves 2 items: only the last may have the size "rest"'),
    ({"waves": [WAVE | {"name": str(n)} for n in range(501)]}, "waves 501 items: must be at most 500"),
    ({"rules": [{"name": str(n), "count": ["failed"], "over": 1} for n in range(51)]}, "rules 51 items: must be at most 50"),
    (wave(name="x" * 101), f'waves[0].name "{"x" * 60}"…: must be 1 to 100 characters'),
    (rule(name="x" * 101), f'rules[0].name "{"x" * 60}"…: must be 1 to 100 characters'),
    (wave(size="\u0661%"), 'waves[0].size "\\u0661%": must be a share'),
    (gate(soak="\u0663h"), 'waves[0].gate.soak "\\u0663h": must be a whole number and a unit'),
    (window(zone="localtime"), 'window.zone "localtime": must be a zone of the IANA database'),
    (wave(name=" "), 'waves[0].name " ": must be 1 to 100 characters'),
    (wave(size=None), "waves[0].size null: give either vins or a size"),
    (wave(size=0), "waves[0].size 0: must be at least 1 vehicle"),
    (wave(size="0%"), 'waves[0].size "0%": must be more than "0%"; a wave of none opens nothing'),
    (wave(size="some"), 'waves[0].size "some": must be a share from "0%" to "100%"'),
    (wave(size="101%"), 'waves[0].size "101%": must be a share from "0%" to "100%"'),
    (wave(gates={}), "waves[0].gates 0 items is not a field of a plan"),
    (gate(success="most"), 'waves[0].gate.success "most": must be a share'),
    (gate(known="0%"), 'waves[0].gate.known "0%": must be more than "0%"'),
    (gate(soak="2 hours"), 'waves[0].gate.soak "2 hours": must be a whole number and a unit (s, m, h, d), such as "30m"'),
    (gate(patience="1w"), 'waves[0].gate.patience "1w": must be a whole number and a unit'),
    (gate(approve=-1), "waves[0].gate.approve -1: must be the number of people who approve, 0 to 9"),
    (rate(**{"from": 0}), "rate.from 0: must be 1 to 1000000 releases a minute"),
    (rate(times=1), "rate.times 1: must be a factor above 1, up to 10"),
    (rate(every=0), "rate.every 0: must be at least 1 success"),
    (rate(up_to=59), "rate.up_to 59: must be at least the rate at the beginning"),
    (window(**{"from": "10pm"}), 'window.from "10pm": must be a time of day from 00:00 to 23:59'),
    (window(to="22:00"), 'window.to "22:00": must differ from the beginning'),
    (window(days=["monday"]), 'window.days[0] "monday": must be one of mon, tue, wed, thu, fri, sat, sun'),
    ({"success": {"by": "answer"}}, "success.within null: belongs to answers, and to them alone"),
    ({"success": {"within": "2h"}}, 'success.within "2h": belongs to answers, and to them alone'),
    ({"success": {"by": "radio"}}, 'success.by "radio": must be one of ack, answer'),
    ({"retry": {"times": 1, "after": "1h", "on": []}}, "retry.on 0 items: must list at least one outcome"),
    (window(days=[]), "window.days 0 items: must name at least one day"),
    (window(zone="Mars/Base"), 'window.zone "Mars/Base": must be a zone of the IANA database, such as "Europe/Berlin"'),
    (window(**{"else": "vehicle"}), 'window.else "vehicle": must be a zone of the IANA database'),
    (rule(count=[]), "rules[0].count 0 items: must list at least one outcome"),
    (rule(count=["delivered"]), 'rules[0].count[0] "delivered": must be one of failed, busy, rejected, silent'),
    (rule(over=-1), "rules[0].over -1: must be 0 or more vehicles"),
    (rule(over="2"), 'rules[0].over "2": must be a share'),
    (rule(at_least=0), "rules[0].at_least 0: must be at least 1 known vehicle"),
    (rule(**{"in": "fleet"}), 'rules[0].in "fleet": must be "wave", "campaign", or a duration such as "30m"'),
    (rule(then="shout"), 'rules[0].then "shout": must be one of pause, cancel, alert'),
    ({"retry": {"times": 0, "after": "6h"}}, "retry.times 0: must be 1 to 20 further attempts"),
    ({"retry": {"times": 2}}, "retry.after is missing; every retry needs it"),
    ({"retry": {"times": 2, "after": "6h", "on": ["expired"]}}, 'retry.on[0] "expired": must be one of failed'),
    ({"approve": {"people": 0}}, "approve.people 0: must be 1 to 9"),
]


@pytest.mark.parametrize(("fields", "reason"), REFUSALS, ids=[reason[:60] for _, reason in REFUSALS])
def test_a_broken_rule_is_reported_with_field_value_and_remedy(fields: dict[str, Any], reason: str) -> None:
    told = parse_plan(json.dumps(document(**fields)).encode())

    assert isinstance(told, Refused)
    assert told.reason.startswith(reason)


@pytest.mark.parametrize("field", ["campaign", "data_id", "targets", "ends"])
def test_a_missing_required_field_is_named(field: str) -> None:
    plan = document()
    del plan[field]

    assert parse_plan(json.dumps(plan).encode()) == Refused(f"{field} is missing; every plan needs it")


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff", b"[1]", b"null", b"[" * 100_000])
def test_anything_but_a_json_object_is_refused(payload: bytes) -> None:
    assert isinstance(parse_plan(payload), Refused)


def test_an_oversized_plan_is_refused_unread() -> None:
    assert parse_plan(b" " * (1 << 20) + b"{}") == Refused(
        "plan of 1048578 bytes is over 1048576; name a file of vehicles instead of listing them"
    )


def test_the_smallest_plan_is_one_wave_without_rate_window_or_rules() -> None:
    plan = parse_plan(json.dumps(document()).encode())

    assert isinstance(plan, Plan)
    assert ([wave.size for wave in plan.waves], plan.rate, plan.window, plan.rules) == (["rest"], None, None, ())
    assert (plan.away, plan.approve.people) == ("wait", 1)


def test_the_plan_identity_does_not_depend_on_field_order() -> None:
    plan = document(rate=60)

    assert plan_sha256(plan) == plan_sha256(dict(reversed(plan.items())))
    assert plan_sha256(plan) != plan_sha256(plan | {"rate": 61})


@pytest.mark.parametrize(("successes", "per_minute"), [(0, 10), (49, 10), (50, 20), (100, 40), (150, 45), (1_000_000, 45)])
def test_an_exponential_rate_grows_with_successes_up_to_its_limit(successes: int, per_minute: int) -> None:
    assert Rate(start=10, times=2, every=50, up_to=45).at(successes) == per_minute


def test_a_slowly_growing_rate_is_computed_at_once_after_many_successes() -> None:
    assert Rate(start=10, times=1 + 1e-12, every=1, up_to=45).at(1 << 60) == 45


FULL = document(
    waves=[WAVE | {"gate": {"success": "98%", "soak": "24h", "approve": 1, "patience": "5d"}}, {"name": "rest", "size": "rest"}],
    **rate(),
    **window(days=["mon"], zone="vehicle"),
    **rule(**{"in": "30m", "then": "alert"}),
    retry={"times": 2, "after": "6h", "on": ["failed"]},
    approve={"people": 2, "not_the_author": True},
    starts="2026-12-01T00:00:00Z",
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
    | st.sampled_from(["1%", "2h", "rest"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "size", "from", "in", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths of all values in a document."""
    inner: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [*([path] if path else []), *(found for name, item in inner for found in places(item, (*path, name)))]


@settings(deadline=None)
@given(st.sampled_from(places(FULL)), values)
def test_any_field_value_is_accepted_or_refused_in_one_sentence(path: tuple[str | int, ...], value: object) -> None:
    document_with = json.loads(json.dumps(FULL))
    inside = document_with
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = value

    told = parse_plan(json.dumps(document_with).encode())

    if isinstance(told, Refused):
        assert "\n" not in told.reason
        assert "$" not in told.reason
        assert len(told.reason) < 300
    else:
        assert told.ends_ms > told.starts_ms


def test_a_plan_with_every_field_is_read() -> None:
    assert isinstance(parse_plan(json.dumps(FULL).encode()), Plan)
