"""What the dispatcher's tests share."""

import pytest


@pytest.fixture(params=[4, 5], ids=["3.1.1", "5"])
def protocol(request: pytest.FixtureRequest) -> int:
    """The vehicle's MQTT, as CONNECT numbers it."""
    return int(request.param)
