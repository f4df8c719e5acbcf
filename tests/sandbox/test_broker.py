"""The files for Mosquitto, and that EMQX and the sandbox say the same."""

import re
from pathlib import Path

import pytest

from contracts.settings import Settings
from contracts.topics import BrokerEvent, event_topic
from sandbox import broker, events
from sandbox.events import Delivery
from sandbox.memory import Publication, Sent
from sandbox.packets import Connect
from tests.servers import ROOT

EMQX = ROOT / "infra" / "emqx"


def told(event: BrokerEvent) -> set[str]:
    """The fields of an event as the tap tells it."""
    publication = Publication(Sent(b"V", b"t", "sdv-d", {}, 0, 0), 1, 1, "ID")
    it = Delivery("t", 1, False, {}, "ID", publication)
    made = {
        BrokerEvent.CONNECTED: lambda: events.connected(1, "V", Connect("V", 5, True, 60), 0, 32),
        BrokerEvent.DISCONNECTED: lambda: events.disconnected(1, "V", 5, "normal", {}, 1),
        BrokerEvent.SUBSCRIBED: lambda: events.subscription(BrokerEvent.SUBSCRIBED, 1, "V", "t", 1),
        BrokerEvent.UNSUBSCRIBED: lambda: events.subscription(BrokerEvent.UNSUBSCRIBED, 1, "V", "t", 1),
        BrokerEvent.DELIVERED: lambda: events.delivered(1, "V", it, False),
        BrokerEvent.ACKED: lambda: events.acked(1, "V", it, {}),
        BrokerEvent.DROPPED: lambda: events.dropped(1, publication, 1, False),
    }
    return set(made[event]())


@pytest.mark.parametrize("event", [event for event in BrokerEvent if event is not BrokerEvent.DELIVERY_DROPPED])
def test_the_tap_tells_exactly_the_fields_that_the_rule_on_emqx_selects(event: BrokerEvent) -> None:
    rules = (EMQX / "manifold.conf").read_text()
    rule = rules[rules.index(f"sdv_{event} {{") :]
    selected = re.search(r"SELECT (.*?)\s+FROM", rule, re.DOTALL)

    assert selected is not None
    assert told(event) == set(selected[1].split(", "))
    assert f'topic = "{event_topic(event, "${clientid}")}", qos = 1' in rule


def test_both_access_files_give_the_services_the_same_topics() -> None:
    emqx = (EMQX / "acl.conf").read_text()
    mosquitto = broker.outer_access(Settings()) + broker.inner_access(Settings())
    topics = set(re.findall(r'"([^"]*/[^"]*)"', "\n".join(line for line in emqx.splitlines() if line.startswith("{allow"))))

    same_words = {topic.replace("${clientid}", "%c").replace("${username}", "%u") for topic in topics}
    assert same_words == {line.split()[-1] for line in mosquitto.splitlines() if line.startswith(("topic", "pattern"))}


def test_user_names_and_prefixes_of_the_settings_are_in_the_access_file() -> None:
    settings = Settings(mqtt_username_dispatcher="d", mqtt_username_publisher="p", topic_prefix="fleet/eu", receipt_prefix="r/")

    access = broker.outer_access(settings)

    assert "user d\n" in access
    assert "topic write fleet/eu/+/proxy/request/+\n" in access
    assert "topic read r/p/#\n" in access
    assert "pattern read fleet/eu/%c/proxy/request/+\n" in access


def test_the_configuration_lies_in_the_home_folder_and_names_the_ports(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, broker_port=12345)

    text = broker.write_config(settings).read_text()

    assert "listener 12345 127.0.0.1\n" in text
    assert f"persistence_location {tmp_path}/mosquitto/\n" in text
    assert "set_tcp_nodelay true\n" in text


def test_a_socket_path_that_is_too_long_for_the_system_is_replaced(tmp_path: Path) -> None:
    deep = Settings(home=tmp_path / ("x" * 120))

    assert len(str(broker.inner_socket(deep))) < 108
    assert broker.inner_socket(deep) == broker.inner_socket(deep)
    assert broker.inner_socket(Settings(home=Path("/m"))) == Path("/m/mosquitto/inner.sock")
