"""A dry run warns about valid plans that may surprise their author."""

from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest

from manifold.campaigns.rehearsal import Fleet
from manifold.campaigns.warnings import warnings_of
from manifold.campaigns.windows import Window, is_skipped
from manifold.contracts import campaigns as r
from tests.manifold.campaigns.plans import NOW, document, proposed, vins

SHARE = {"name": "r1", "count": ["failed"], "over": "2%", "at_least": 5, "in": "wave"}
WAVES = [{"name": "first", "size": 2}, {"name": "rest", "size": "rest"}]
ONE_HOUR = {"from": "02:00", "to": "03:00"}
ZONES = ["Europe/Berlin", "Europe/Berlin", "Asia/Tokyo", None, "Mars/Base"]
LISTED = [r.Target(vin, zone) for vin, zone in zip(vins(5), ZONES, strict=True)]
FILE = {"targets": {"file": "list.parquet"}}

CASES: list[tuple[dict[str, Any], Sequence[r.Target], list[str]]] = [
    ({}, (), []),
    (
        {"waves": WAVES, "rules": [SHARE]},
        (),
        ["rule r1 cannot trip in wave first of 2, below its at_least 5; add a rule with an absolute number"],
    ),
    ({"waves": WAVES, "rules": [SHARE | {"in": "campaign"}, SHARE | {"name": "r2", "over": 1}]}, (), []),
    ({"waves": WAVES[:1]}, (), ['8 targets are in no wave and will not be released; add a wave of the size "rest"']),
    ({**FILE, "window": ONE_HOUR | {"zone": "Asia/Tokyo"}}, LISTED, []),
    ({**FILE, "window": ONE_HOUR}, LISTED, ["2 targets have no known zone: their window is that of UTC"]),
    (
        {**FILE, "window": ONE_HOUR, "ends": "2027-04-01T00:00:00Z"},
        LISTED[:3],
        ["the window does not open on 2027-03-28 in Europe/Berlin, where the clock skips it: 2 targets wait for the next"],
    ),
]


@pytest.mark.parametrize(("fields", "targets", "expected"), CASES)
def test_a_dry_run_warns(fields: dict[str, Any], targets: Sequence[r.Target], expected: list[str]) -> None:
    campaign = proposed(document(**fields), Fleet({}), targets).campaign

    assert warnings_of(campaign, NOW) == expected


@pytest.mark.parametrize(
    ("window", "day", "skipped"),
    [
        (Window("02:00", "03:00"), date(2027, 3, 28), True),
        (Window("02:00", "03:01"), date(2027, 3, 28), False),  # open from 03:00 on
        (Window("02:00", "03:00"), date(2027, 3, 27), False),
        (Window("02:00", "03:00", days=("mon",)), date(2027, 3, 28), False),  # a Sunday, so nothing is skipped
        (Window("02:30", "01:00"), date(2027, 3, 28), False),
        (Window("02:00", "03:00"), date(2026, 10, 25), False),
    ],
)
def test_a_day_is_skipped_when_the_clock_jumps_over_its_whole_window(window: Window, day: date, skipped: bool) -> None:
    assert is_skipped(window, "Europe/Berlin", day) == skipped
