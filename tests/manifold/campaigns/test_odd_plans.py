"""Plans whose numbers and times are odd: refused with a reason, or read as they say."""

import json
from typing import Any

import pytest

from manifold.campaigns.membership import assign
from manifold.campaigns.parsing import parse_plan
from manifold.campaigns.plan import Plan
from manifold.contracts.campaigns import Target
from manifold.contracts.messages import Refused


def parsed(**fields: Any) -> Plan | Refused:
    plan = {"campaign": "c", "data_id": "d", "targets": {"vins": ["V1", "V2"]}, "ends": "2027-01-01T00:00:00Z"}
    return parse_plan(json.dumps(plan | fields).encode())


def test_a_wave_of_more_vehicles_than_there_are_takes_all() -> None:
    plan = parsed(waves=[{"name": "all", "size": 10**30}])
    assert isinstance(plan, Plan)

    members = assign(plan, [Target("V1"), Target("V2")])

    assert not isinstance(members, Refused)
    assert [len(wave) for wave in members] == [2]


@pytest.mark.parametrize("text", ["T0800", "0800Z", "08.00", "24:00", "8:000", "\u0660\u0668:\u0660\u0660"])
def test_a_window_begins_at_a_time_of_day_and_at_nothing_else(text: str) -> None:
    told = parsed(window={"from": text, "to": "09:00"})
    assert isinstance(told, Refused)
    assert "window.from" in told.reason
    assert "from 00:00 to 23:59" in told.reason
