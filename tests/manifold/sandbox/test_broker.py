"""The files for Mosquitto, and the agreement of EMQX and the sandbox."""

import re
from pathlib import Path

import pytest
from paho.mqtt.client import topic_matches_sub

from manifold.contracts.rights import Action, Rights
from manifold.contracts.topics import RECORDER_FILTERS, BrokerEvent, event_topic
from manifold.sandbox.platform import broker
from manifold.sandbox.tap import events
from manifold.sandbox.tap.events import Delivery
from manifold.sandbox.tap.packets import Connect
from manifold.sandbox.tap.publication_store import Publication, PublicationStore, Sent
from manifold.sandbox.tap.sessions import Sessions
from manifold.settings import Settings
from manifold.settings.embedded_broker import inner_socket
from tests.manifold.sandbox.access import Client, allows
from tests.support.servers import ROOT

EMQX = ROOT / "infra" / "emqx"


def told(event: BrokerEvent) -> set[str]:
    """The fields of an event as the tap publishes it."""
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
def test_the_tap_publishes_the_fields_that_the_emqx_rule_selects(event: BrokerEvent) -> None:
    rules = (EMQX / "manifold.conf").read_text()
    rule = rules[rules.index(f"sdv_{event} {{") :]
    selected = re.search(r"SELECT (.*?)\s+FROM", rule, re.DOTALL)

    assert selected is not None
    assert told(event) == {field.split(" as ")[-1] for field in re.split(r",\s+", selected[1])}
    assert f'topic = "{event_topic(event, "${clientid}")}", qos = 1' in rule


def test_the_maximum_packet_size_of_a_vehicle_is_reported_as_emqx_does() -> None:
    asked = Connect("V", 5, True, 60, properties={"Maximum-Packet-Size": 256})
    assert events.connected(1, "V", asked, 0, 32)["max_packet_size"] == 256
    assert events.connected(1, "V", Connect("V", 5, True, 60), 0, 32)["max_packet_size"] == "undefined"
    assert "conn_props.'Maximum-Packet-Size' as max_packet_size" in (EMQX / "manifold.conf").read_text()


ANY = [BrokerEvent.DELIVERED, BrokerEvent.ACKED, BrokerEvent.DROPPED, BrokerEvent.DELIVERY_DROPPED]
SUBSCRIPTIONS = [BrokerEvent.SUBSCRIBED, BrokerEvent.UNSUBSCRIBED]


@pytest.mark.parametrize(
    ("events", "topic", "is_told"),
    [
        (ANY, "agent/V1/proxy/request/r", True),
        (ANY, "agent/V1/proxy/response/r", False),
        (ANY, "$ECQ/V1/a", True),
        (ANY, "$ECQ/V1/a/b/", True),
        (ANY, "ecp/V1/online", False),
        ([BrokerEvent.DROPPED], "$ECQ/w/V1/a", False),  # denied to vehicles by the access rules
        ([BrokerEvent.DROPPED], "$ECQ/r/V1", False),
        ([BrokerEvent.DROPPED], "$ECQ/water/a", True),
        (SUBSCRIPTIONS, "$ECQ/V1/#", True),
        (SUBSCRIPTIONS, "$ECQ/V1/+/b", True),
        (SUBSCRIPTIONS, "agent/V1/#", True),
        (SUBSCRIPTIONS, "sdv/receipt/V1", False),
    ],
)
def test_emqx_rules_cover_both_kinds_of_queue_and_nothing_else(events: list[BrokerEvent], topic: str, is_told: bool) -> None:
    assert {event: is_selected(event, topic) for event in events} == dict.fromkeys(events, is_told)


def is_selected(event: BrokerEvent, topic: str) -> bool:
    """Whether EMQX's rule for an event selects a topic; of a subscription, its filter."""
    rules = (EMQX / "manifold.conf").read_text()
    rule = rules[rules.index(f"sdv_{event} {{") :]
    where = rule[rule.index("WHERE") : rule.index('"""', rule.index("WHERE"))]
    chosen = any(topic_matches_sub(name, topic) for name in re.findall(r"topic =~ '([^']+)'", where))
    left_out = any(re.search(pattern, topic) for pattern in re.findall(r"not regex_match\(topic, '([^']+)'\)", where))
    return chosen and not left_out


@pytest.mark.parametrize("event", SUBSCRIPTIONS)
def test_the_tap_reports_the_filters_that_the_emqx_rules_select(event: BrokerEvent) -> None:
    own = (
        "agent/V1",
        "agent/V1/",
        "agent/V1/#",
        "agent/V1/+/request/+",
        "agent/V1/proxy/request/r/s",
        "agent/V1/proxy/response/+",
    )
    queues = ("$ECQ", "$ECQ/V1", "$ECQ/V1/#", "$ECQ/V1/a/+", "$ECQ/w/#", "$ECQ/+/#")
    others = (
        "agent",
        "agents/V1/#",
        "agent/+/proxy/response/#",
        "#",
        "+/V1/#",
        "$share/g/agent/V1/#",
        "$queue/agent/V1/#",
        "ecp/#",
    )
    sessions = Sessions(Rights(), PublicationStore(), lambda *_: None, lambda: 0)

    for topic_filter in (*own, *queues, *others):
        assert sessions.is_reported(topic_filter) == is_selected(event, topic_filter), topic_filter


def test_both_emqx_zones_accept_what_the_settings_allow_a_publisher(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    rules = (EMQX / "manifold.conf").read_text()
    vehicles, platform = (int(mib) << 20 for mib in re.findall(r"max_packet_size = (\d+)MB", rules))

    assert rules.index("mqtt { max_packet_size") < rules.index("zones.platform {")  # the first is global
    assert vehicles > settings.max_data_bytes
    assert platform >= settings.largest_packet
    assert f"\nmax_packet_size {settings.largest_packet}\n" in broker.write_config(settings).read_text()


def test_both_access_files_give_services_the_same_topics() -> None:
    emqx = (EMQX / "acl.conf").read_text()
    mosquitto = broker.outer_access(Settings()) + broker.inner_access(Settings())
    rules = "\n".join(line for line in emqx.splitlines() if line.startswith("{allow"))
    topics = set(re.findall(r'"([^"]*/[^"]*|\$[^"/]*)"', rules))

    same_words = {topic.replace("${clientid}", "%c").replace("${username}", "%u") for topic in topics}
    assert same_words == {line.split()[-1] for line in mosquitto.splitlines() if line.startswith(("topic", "pattern"))}


VEHICLE, LISTENER, PUBLISHER = Client("V1"), Client("sdv-hears", "sdv-listener"), Client("sdv-pub-a-1", "sdv-pub-a")
CAMPAIGNS, API = Client("sdv-campaigns-1", "sdv-campaigns"), Client("sdv-api-1", "sdv-api")
RECORDER, DISPATCHER = Client("sdv-recorder-0", "sdv-recorder"), Client("sdv-dispatcher-0", "sdv-dispatcher")
FORMS = ("", "$share/g/", "$exclusive/")
NOT_OF_V1 = ("$ECQ/V2/#", "$ECQ/V2/a", "$ECQ/+/#", "$ECQ/+/a", "$ECQ/#", "$ECQ/w/#", "$ECQ/w/V1/#", "$ECQ/r/#", "$ECQ/r/V1")
SERVICES = (LISTENER, PUBLISHER, RECORDER, DISPATCHER, CAMPAIGNS, API)
MINTED = [Client(it.username, it.username, vehicle=it.username) for it in SERVICES]
MAY = [
    (Client("V1", "V1", vehicle="V1"), "subscribe", "agent/V1/#"),
    (Client("sdv-pub-a:a-1", "sdv-pub-a"), "publish", "$SDV-FANOUT/trigger"),  # client ids as created by tls.conf
    (Client("sdv-recorder:sdv-recorder-0", "sdv-recorder"), "subscribe", "$share/sdv-recorders/$SDV-FANOUT/#"),
    (VEHICLE, "subscribe", "agent/V1/proxy/request/+"),
    (VEHICLE, "subscribe", "agent/V1/proxy/request/#"),
    (VEHICLE, "subscribe", "agent/V1/#"),
    (VEHICLE, "subscribe", "agent/V1/proxy/request/task_1"),
    (VEHICLE, "subscribe", "$ECQ/V1/#"),
    (VEHICLE, "subscribe", "$ECQ/V1/a/+"),
    (VEHICLE, "publish", "$ECQ/r/V1"),
    (VEHICLE, "publish", "ecp/V1/online"),
    (VEHICLE, "publish", "agent/V1/proxy/response/task_1"),
    (LISTENER, "subscribe", "agent/+/proxy/response/#"),
    (LISTENER, "subscribe", "$share/g/ecp/#"),
    (PUBLISHER, "publish", "$SDV-FANOUT/trigger"),
    (PUBLISHER, "publish", "$SDV-FANOUT"),
    (PUBLISHER, "publish", "$ECQ/w/V1/a/b"),
    (PUBLISHER, "publish", "$ECQ/r/V1"),
    (PUBLISHER, "subscribe", "sdv/receipt/sdv-pub-a/1"),
    *((RECORDER, "subscribe", f"{group}{name}") for group in ("", "$share/sdv-recorders/") for name in RECORDER_FILTERS),
    *((RECORDER, "subscribe", f"{group}agent/+/proxy/response/+") for group in ("", "$share/sdv-recorders/")),
    (DISPATCHER, "publish", "agent/V1/proxy/request/task_1"),
    (DISPATCHER, "publish", "$ECQ/V1/a/b"),
    (CAMPAIGNS, "publish", "$SDV-FANOUT/campaign"),
    (CAMPAIGNS, "publish", "$SDV-FANOUT/release"),
    (CAMPAIGNS, "subscribe", "sdv/receipt/sdv-campaigns/1"),
    (Client("sdv-campaigns:sdv-campaigns-1", "sdv-campaigns"), "publish", "$SDV-FANOUT/campaign"),
    (API, "publish", "$SDV-FANOUT/campaign"),
    (API, "publish", "$ECQ/r/V1"),
    (API, "subscribe", "sdv/receipt/sdv-api/1"),
    (Client("sdv-api:sdv-api-1", "sdv-api"), "publish", "$ECQ/r/V1"),
]
MAY_NOT = [
    # A certificate of the vehicles' CA with the name of a service.
    (MINTED[0], "subscribe", "ecp/#"),
    (MINTED[1], "publish", "$SDV-FANOUT/trigger"),
    (MINTED[1], "subscribe", "sdv/receipt/sdv-pub-a/1"),
    *((MINTED[2], "subscribe", name) for name in RECORDER_FILTERS),
    (MINTED[3], "publish", "agent/V1/proxy/request/task_1"),
    (MINTED[4], "publish", "$SDV-FANOUT/campaign"),
    (MINTED[5], "publish", "$SDV-FANOUT/campaign"),
    *((client, "publish", "$SDV-FANOUT/release") for client in (VEHICLE, LISTENER, PUBLISHER, RECORDER, DISPATCHER, API)),
    *((client, "publish", "$SDV-FANOUT/campaign") for client in (VEHICLE, LISTENER, PUBLISHER, RECORDER, DISPATCHER)),
    (Client("V1", "sdv-pub-a"), "publish", "$SDV-FANOUT/campaign"),  # falls through to the rules for vehicles
    (Client("V1", "sdv-campaigns-2"), "publish", "$SDV-FANOUT/campaign"),
    (Client("V1", "xsdv-campaigns"), "publish", "$SDV-FANOUT/campaign"),
    (CAMPAIGNS, "publish", "$SDV-FANOUT/campaign/x"),
    (CAMPAIGNS, "publish", "$SDV-FANOUT/data/d"),
    (CAMPAIGNS, "publish", "$SDV-FANOUT"),
    (CAMPAIGNS, "publish", "$SDV-FANOUT/trigger"),
    (CAMPAIGNS, "publish", "agent/V1/proxy/request/task_1"),
    (CAMPAIGNS, "publish", "$ECQ/w/V1/a"),
    (CAMPAIGNS, "subscribe", "$SDV-FANOUT/#"),
    (CAMPAIGNS, "subscribe", "$SDV-FANOUT/campaign"),
    (CAMPAIGNS, "subscribe", "sdv/receipt/#"),
    (CAMPAIGNS, "subscribe", "sdv/receipt/sdv-pub-a/1"),
    (PUBLISHER, "subscribe", "sdv/receipt/sdv-campaigns/1"),
    *(
        (API, "publish", name)
        for name in ("$SDV-FANOUT/trigger", "$SDV-FANOUT", "$SDV-FANOUT/data/d", "$ECQ/w/V1/a", "$ECQ/V1/a")
    ),
    *((API, "publish", name) for name in ("$SDV-FANOUT/campaign/x", "$ECQ/r/V1/a", "agent/V1/proxy/request/task_1")),
    *((API, "subscribe", name) for name in ("$SDV-FANOUT/#", "$ECQ/r/+", "sdv/receipt/#", "sdv/receipt/sdv-campaigns/1")),
    *((Client("V1", name), "publish", "$SDV-FANOUT/campaign") for name in ("sdv-api-1", "xsdv-api")),
    (VEHICLE, "subscribe", "agent/V2/proxy/request/+"),
    (VEHICLE, "subscribe", "agent/+/proxy/request/+"),
    (VEHICLE, "subscribe", "agent/#"),
    (VEHICLE, "subscribe", "#"),
    (VEHICLE, "publish", "agent/V1/proxy/request/task_1"),
    (VEHICLE, "publish", "ecp/V2/online"),
    *((VEHICLE, "publish", f"agent/{vin}/proxy/response/maps-47") for vin in ("V2", "V", "V11", "v1", "")),
    *((client, "publish", "agent/V1/proxy/response/maps-47") for client in SERVICES),
    *((RECORDER, "subscribe", name) for name in ("agent/+/proxy/+/+", "agent/#", "ecp/#")),
    (VEHICLE, "subscribe", "agent/+/proxy/response/+"),
    (CAMPAIGNS, "subscribe", "agent/+/proxy/response/+"),
    (PUBLISHER, "subscribe", "agent/+/proxy/response/+"),
    (VEHICLE, "publish", "$SDV-FANOUT/trigger"),
    (VEHICLE, "publish", "$SDV-FANOUT"),
    (VEHICLE, "publish", "$events/message_acked"),
    (VEHICLE, "publish", "$ECQ/w/V1/a"),
    (VEHICLE, "publish", "$ECQ/V1/a"),
    (VEHICLE, "publish", "$ECQ/r/V2"),
    (VEHICLE, "publish", "$ECQ/r/V1/a"),
    (VEHICLE, "publish", "$ECQ/r"),
    *((VEHICLE, "subscribe", f"{form}{name}") for form in FORMS for name in NOT_OF_V1),
    (LISTENER, "subscribe", "$ECQ/#"),
    (LISTENER, "publish", "$ECQ/r/V1"),
    (PUBLISHER, "publish", "$ECQ/V1/a"),
    (PUBLISHER, "publish", "$ECQ/r/V1/a"),
    *((PUBLISHER, "subscribe", f"{form}$ECQ/V1/#") for form in FORMS),
    *((RECORDER, "subscribe", name) for name in ("$ECQ/V1/#", "$ECQ/#", "$ECQ/+/#")),
    (DISPATCHER, "publish", "$ECQ/w/V1/a"),
    (DISPATCHER, "publish", "$ECQ/r/V1"),
    (LISTENER, "subscribe", "agent/+/proxy/request/+"),  # would hide that a vehicle is not subscribed
    (LISTENER, "subscribe", "agent/#"),
    (LISTENER, "publish", "ecp/V1/online"),
    (LISTENER, "publish", "$SDV-FANOUT/trigger"),
    (PUBLISHER, "subscribe", "sdv/receipt/sdv-pub-b/#"),
    (PUBLISHER, "subscribe", "ecp/#"),
    *((Client(odd), "subscribe", f"$ECQ/{odd}/#") for odd in ("w", "r", "+", "a/b", "sdv-x")),
    *((Client(odd), "publish", f"ecp/{odd}/online") for odd in ("w", "r", "#")),
    *((Client(odd), "publish", f"$ECQ/r/{odd}") for odd in ("w", "r", "+", "#", "a/b", "sdv-x")),
    *((Client(odd), "subscribe", "$ECQ/V1/#") for odd in ("w", "r", "+", "#", "V1/#", "+/#", "sdv-x")),
]


@pytest.mark.parametrize(("client", "action", "topic"), MAY)
def test_emqx_allows_every_client_its_own_topics(client: Client, action: str, topic: str) -> None:
    assert allows((EMQX / "acl.conf").read_text(), client, action, topic)


@pytest.mark.parametrize(("client", "action", "topic"), MAY_NOT)
def test_emqx_denies_every_client_foreign_topics(client: Client, action: str, topic: str) -> None:
    assert not allows((EMQX / "acl.conf").read_text(), client, action, topic)


CLIENTS = [
    VEHICLE,
    LISTENER,
    PUBLISHER,
    CAMPAIGNS,
    API,
    RECORDER,
    DISPATCHER,
    *(Client(odd) for odd in ("w", "r", "+", "#", "a/b", "sdv-x")),
]
ASKED = sorted({topic for _, _, topic in (*MAY, *MAY_NOT)} | {f"{form}$SDV-EVT/#" for form in FORMS})


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.client_id)
def test_the_access_table_of_the_tap_matches_emqx(client: Client) -> None:
    rules, rights = (EMQX / "acl.conf").read_text(), Rights()

    for action in Action:
        emqx = {topic for topic in ASKED if allows(rules, client, action, topic)}
        assert {topic for topic in ASKED if rights.allows(client.client_id, client.username, action, topic)} == emqx


def test_emqx_takes_the_name_from_the_certificate_and_no_foreign_session() -> None:
    """On EMQX 5.8.9 these expressions gave 114 of 114 connections their rights; a certificate without a name has none."""
    text = (EMQX / "tls.conf").read_text()
    vehicles, _, services = text.partition("zones.platform.mqtt {")
    assert all(f"peer_cert_as_{name} = cn" in vehicles for name in ("clientid", "username"))
    nobody = "concat(['sdv-nobody:', rand_str(16)])"
    assert "client_attrs_init = [{ expression = \"iif(cn, cn, 'sdv-nobody')\", set_as_attr = vehicle }]" in vehicles
    assert f"clientid_override = \"iif(cn, regex_replace(clientid, '^sdv-', 'vehicle:sdv-'), {nobody})\"" in vehicles
    services = services.partition("\n}")[0]
    assert "peer_cert_as_username = cn" in services
    assert "client_attrs_init = [{ expression = \"iif(cn, '', 'sdv-nobody')\", set_as_attr = vehicle }]" in services
    assert f"clientid_override = \"iif(cn, concat([cn, ':', clientid]), {nobody})\"" in services


def test_emqx_disables_tls_resumption_to_verify_each_certificate() -> None:
    """TLS 1.2's resumption let expired and revoked certificates in on both listeners."""
    text = (EMQX / "tls.conf").read_text()

    assert text.count("fail_if_no_peer_cert = true") == text.count("reuse_sessions = false") == 2


def test_emqx_caches_no_denial_from_its_start() -> None:
    assert "cache { enable = false }" in (EMQX / "manifold.conf").read_text()


def test_user_names_and_prefixes_of_the_settings_are_in_the_access_file() -> None:
    settings = Settings(
        mqtt_username_dispatcher="d",
        mqtt_username_publisher="p",
        mqtt_username_campaigns="c",
        mqtt_username_api="a",
        topic_prefix="fleet/eu",
        receipt_prefix="r/",
    )

    access = broker.outer_access(settings)

    assert "user d\n" in access
    assert "topic write fleet/eu/+/proxy/request/+\n" in access
    assert "topic read r/p/#\n" in access
    assert "user c\ntopic write $SDV-FANOUT/campaign\ntopic write $SDV-FANOUT/release\ntopic read r/c/#\n" in access
    assert "user a\ntopic write $SDV-FANOUT/campaign\ntopic write $ECQ/r/+\ntopic read r/a/#\n" in access
    assert "pattern read fleet/eu/%c/#\n" in access


def test_the_configuration_is_in_the_home_folder_and_names_the_ports(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, broker_port=12345)

    text = broker.write_config(settings).read_text()

    assert "listener 12345 127.0.0.1\n" in text
    assert f"persistence_location {tmp_path}/mosquitto/\n" in text
    assert "set_tcp_nodelay true\n" in text


def test_an_overlong_socket_path_is_replaced(tmp_path: Path) -> None:
    deep = Settings(home=tmp_path / ("x" * 120))

    assert len(str(inner_socket(deep))) < 108
    assert inner_socket(deep) == inner_socket(deep)
    assert inner_socket(Settings(home=Path("/m"))) == Path("/m/mosquitto/inner.sock")
