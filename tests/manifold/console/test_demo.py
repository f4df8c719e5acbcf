"""The list of services that `manifold demo` starts."""

from manifold.console._demo import start_of
from manifold.settings import Settings


def test_the_demo_names_no_broker_if_it_starts_none() -> None:
    own = start_of(Settings())
    of_others = start_of(Settings(mqtt_url="mqtt://broker.example:1883"))

    assert [name for name in ("broker", "tap") if name in own] == ["broker", "tap"]
    assert [name for name in ("broker", "tap") if name in of_others] == []
    assert "dispatcher" in of_others
