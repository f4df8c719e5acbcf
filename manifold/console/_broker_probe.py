"""Probes whether an external broker suits Manifold, by connecting as a dispatcher and as a test vehicle.

The probe judges by the messages that arrive, because brokers refuse in different ways: one broker rejects a SUBSCRIBE, another
accepts it and then withholds the messages.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from manifold.console._diagnostic import Diagnostic
from manifold.contracts import topics
from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.topics import BrokerEvent
from manifold.messaging.mqtt import Message, Mqtt
from manifold.settings import Settings

WAIT_S = 5.0
TLS_SCHEMES = ("mqtts", "ssl")
REQUIRED_EVENTS = (BrokerEvent.CONNECTED, BrokerEvent.SUBSCRIBED, BrokerEvent.ACKED)  # without them, delivery does not work
# Marks what the probe publishes: the kind of its forged event (a dispatcher ignores events of unknown kinds), the request_id of
# its messages except the last, and their user property.
PROBE = "probe"
RULES = "include infra/emqx/manifold.conf in the broker's configuration; see docs/guides/emqx.md"
ACCESS = "let infra/emqx/acl.conf be the broker's only access rules; see docs/guides/emqx.md"


class _Inbox:
    """Records and acknowledges the messages that a client receives."""

    def __init__(self, client: Mqtt) -> None:
        self._client = client
        self._arrival = asyncio.Event()
        self.messages: list[Message] = []
        client.on_message = self._receive

    def _receive(self, message: Message) -> None:
        self.messages.append(message)
        self._client.ack(message)
        self._arrival.set()

    async def wait_for(self, is_match: Callable[[Message], bool]) -> bool:
        """Wait for a matching message, up to `WAIT_S`; return whether one has arrived, even if it was before this call."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while not any(map(is_match, self.messages)):
                    self._arrival.clear()
                    await self._arrival.wait()
        return any(map(is_match, self.messages))


def probe_quietly(settings: Settings) -> list[Diagnostic]:
    """Return the findings of `probe`. Manifold's logging is off meanwhile, because a refusal here is a finding, not an error."""
    logger = logging.getLogger("manifold")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        return asyncio.run(probe(settings))
    finally:
        logger.setLevel(level)


async def probe(settings: Settings) -> list[Diagnostic]:
    """Connect to the broker and check it; return the findings in order of dependency.

    Checks that depend on a failed one are omitted.
    """
    vin = settings.mqtt_probe_username or f"probe-{secrets.token_hex(6)}"
    async with AsyncExitStack() as stack:
        service = _service_client(settings, vin)
        service_inbox = _Inbox(service)
        await stack.enter_async_context(service)
        if not await _connects(service):
            remedy = "correct MANIFOLD_MQTT_URL, MANIFOLD_MQTT_PASSWORD, or the broker's users; see docs/guides/emqx.md"
            return [Diagnostic("broker", False, service.problem or f"{settings.mqtt} does not answer", remedy)]
        findings = [Diagnostic("broker", True, settings.mqtt)]
        if not await _subscribes(service, f"{topics.EVENTS}/+/{vin}"):
            seen = f"{settings.mqtt_username_dispatcher} may not subscribe to events"
            return [*findings, Diagnostic("broker's access rules", False, seen, ACCESS)]
        has_password = bool(settings.mqtt_probe_password.get_secret_value())
        if urlsplit(settings.mqtt_for_vehicles).scheme in TLS_SCHEMES and not has_password:
            seen = (
                f"not asked: {settings.mqtt_for_vehicles} takes a vehicle's certificate, and no setting names one; "
                "events and access rules are not judged"
            )
            return [*findings, Diagnostic("broker, for vehicles", True, seen)]
        vehicle = _vehicle_client(settings, vin)
        vehicle_inbox = _Inbox(vehicle)
        await stack.enter_async_context(vehicle)
        if not await _connects(vehicle):
            remedy = "name a vehicle that may connect: MANIFOLD_MQTT_PROBE_USERNAME, MANIFOLD_MQTT_PROBE_PASSWORD"
            seen = vehicle.problem or f"{settings.mqtt_for_vehicles} does not answer"
            return [*findings, Diagnostic("broker, for vehicles", False, seen, remedy)]
        return findings + await _check_messages(settings, vin, (service, service_inbox), (vehicle, vehicle_inbox))


def _service_client(settings: Settings, vin: str) -> Mqtt:
    """A client with the user name of a dispatcher; its client id contains `vin`, so that it is unique."""
    username = settings.mqtt_username_dispatcher
    password = settings.mqtt_password.get_secret_value() or None
    return Mqtt(settings.mqtt, f"{username}-{vin}", username=username, password=password, tls=settings.tls_files(username))


def _vehicle_client(settings: Settings, vin: str) -> Mqtt:
    """A client that connects as the test vehicle `vin`; without the settings `mqtt_probe_…`, it sends no user or password."""
    username = settings.mqtt_probe_username or None
    password = settings.mqtt_probe_password.get_secret_value() or None
    return Mqtt(settings.mqtt_for_vehicles, vin, username=username, password=password, tls=settings.tls_files(vin))


async def _check_messages(
    settings: Settings, vin: str, service_side: tuple[Mqtt, _Inbox], vehicle_side: tuple[Mqtt, _Inbox]
) -> list[Diagnostic]:
    """Check events and access rules by subscribing and publishing as a service and as a vehicle."""
    service, service_inbox = service_side
    vehicle, vehicle_inbox = vehicle_side
    prefix = settings.topic_prefix
    other_vin = f"{vin}-other"
    own_topic = topics.request_topic(prefix, vin, PROBE)
    last_own_topic = topics.request_topic(prefix, vin, "last")
    other_topic = topics.request_topic(prefix, other_vin, PROBE)
    forged_event_topic = f"{topics.EVENTS}/{PROBE}/{vin}"

    own_filters = (topics.request_filter(prefix, vin), f"{prefix}/{vin}/#")
    refused_filters = [topic_filter for topic_filter in own_filters if not await _subscribes(vehicle, topic_filter)]
    problems = [f"a vehicle may not subscribe {topic_filter}" for topic_filter in refused_filters]
    await _publish(vehicle, forged_event_topic)
    await _publish(service, own_topic)
    missing = [kind for kind in REQUIRED_EVENTS if not await service_inbox.wait_for(partial(_is_event, kind))]
    if any(message.topic == forged_event_topic for message in service_inbox.messages):
        problems.append("a vehicle may publish events")

    await _subscribes(vehicle, topics.request_filter(prefix, other_vin))
    await _publish(service, other_topic)
    # A broker delivers in order: once this last message has arrived, the one to the other vehicle has arrived, or was withheld.
    await _publish(service, last_own_topic)
    if not await vehicle_inbox.wait_for(lambda message: message.topic == last_own_topic):
        problems.append("a vehicle does not get what the dispatcher publishes to it")
    if any(message.topic == other_topic for message in vehicle_inbox.messages):
        problems.append("a vehicle gets what is addressed to another one")

    detail = f"no event {', '.join(missing)}" if missing else "connected, subscribed and acked are published"
    return [
        Diagnostic("broker's events", not missing, detail, RULES),
        Diagnostic("broker's access rules", not problems, "; ".join(problems) or "as expected", ACCESS),
    ]


def _is_event(kind: BrokerEvent, message: Message) -> bool:
    """Whether a message is an event of this kind.

    An acknowledgement must contain the user properties of the publish, because the dispatcher reads the seq from them.
    """
    if not message.topic.startswith(f"{topics.EVENTS}/{kind}/"):
        return False
    if kind is not BrokerEvent.ACKED:
        return True
    try:
        fields: Any = json.loads(message.payload)
        return bool(fields["pub_props"]["User-Property"][PROBE] == PROBE)
    except (ValueError, KeyError, TypeError):
        return False


async def _connects(client: Mqtt) -> bool:
    """Wait up to `WAIT_S` for the client to be connected; return whether it is."""
    with suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S):
            await client.wait_connected()
    return client.connected.is_set()


async def _subscribes(client: Mqtt, topic_filter: str) -> bool:
    """Subscribe; return whether the broker accepts that within `WAIT_S`. It may withhold the messages nevertheless."""
    try:
        async with asyncio.timeout(WAIT_S):
            await client.subscribe(topic_filter)
    except (Permanent, TimeoutError):
        return False
    return True


async def _publish(client: Mqtt, topic: str) -> bool:
    """Publish an empty message; return whether the broker confirmed it, with any reason code."""
    try:
        async with asyncio.timeout(WAIT_S):
            await client.publish(topic, b"", user_properties=[(PROBE, PROBE)])
    except (Retryable, TimeoutError):
        return False
    return True
