"""The list of services that `manifold demo` starts."""

from manifold.console._demo import describe_start
from manifold.settings import Settings


def test_the_demo_names_no_broker_if_it_starts_none() -> None:
    own = describe_start(Settings())
    of_others = describe_start(Settings(mqtt_url="mqtt://broker.example:1883"))

    assert [name for name in ("broker", "tap") if name in own] == ["broker", "tap"]
    assert [name for name in ("broker", "tap") if name in of_others] == []
    assert "dispatcher" in of_others
