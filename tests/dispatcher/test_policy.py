"""Calculations over the settings: filters, deadlines, jitter."""

from typing import Any

import pytest

from dispatcher._service import SHARED_EXPIRY_S, SINGLE_EXPIRY_S, session_expiry_s
from manifold.settings import Settings
from tests.dispatcher.steps import NOW, RULES, SEQ, VIN


@pytest.mark.parametrize(
    ("topic_filter", "reaches"),
    [
        ("agent/VIN-1/proxy/request/+", True),
        ("agent/VIN-1/proxy/request/task_a_1", True),
        ("agent/VIN-1/proxy/#", True),
        ("agent/VIN-1/proxy/request/#", True),
        ("agent/+/proxy/request/+", True),
        ("#", True),
        ("$share/garage/agent/VIN-1/proxy/request/+", True),
        ("agent/VIN-1", False),
        ("agent/VIN-1/proxy/request", False),
        ("agent/VIN-1/proxy/request/a/b", False),
        ("agent/VIN-2/proxy/request/+", False),
        ("other/VIN-1/proxy/request/+", False),
    ],
)
def test_a_filter_reaches_the_vehicle_if_it_matches_one_of_its_requests(topic_filter: str, reaches: bool) -> None:
    assert RULES.reaches(topic_filter, VIN) is reaches


def test_each_attempt_doubles_its_time_up_to_the_maximum() -> None:
    assert [RULES.wait_ms(attempt) for attempt in (1, 2, 3, 4, 9)] == [30_000, 60_000, 120_000, 120_000, 120_000]


def test_deadlines_of_one_batch_are_spread_and_never_early() -> None:
    looks = [RULES.recheck_at_ms(f"VIN-{n}", SEQ, 1, NOW) for n in range(100)]
    assert min(looks) > NOW
    assert max(looks) <= NOW + 1 + 3_000
    assert len({look // 100 for look in looks}) > 20


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        pytest.param({}, SINGLE_EXPIRY_S, id="a single dispatcher in the sandbox"),
        pytest.param({"mqtt_url": "mqtt://emqx:1884"}, SINGLE_EXPIRY_S, id="a single dispatcher with EMQX"),
        pytest.param({"dispatchers": 2}, SINGLE_EXPIRY_S, id="several without shared subscriptions each receive everything"),
        pytest.param({"mqtt_url": "mqtt://emqx:1884", "dispatchers": 2}, SHARED_EXPIRY_S, id="its share goes to other replicas"),
        pytest.param({"mqtt_session_expiry_seconds": 20}, 20, id="limited by the setting"),
    ],
)
def test_the_session_expiry_depends_on_whether_replicas_share_the_events(settings: dict[str, Any], seconds: int) -> None:
    assert session_expiry_s(Settings(**settings)) == seconds
