"""Fixtures of the dispatcher's tests."""

import pytest


@pytest.fixture(params=[4, 5], ids=["3.1.1", "5"])
def protocol(request: pytest.FixtureRequest) -> int:
    """The vehicle's MQTT protocol level, as in CONNECT."""
    return int(request.param)
