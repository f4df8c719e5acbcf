"""Probes whether an external broker suits Manifold, by connecting as a dispatcher and as a test vehicle.

It judges effects, because brokers refuse in different ways: one rejects a SUBSCRIBE, another withholds the messages.
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
EVENTS = (BrokerEvent.CONNECTED, BrokerEvent.SUBSCRIBED, BrokerEvent.ACKED)  # required for delivery
FORGED = "probe"  # in place of an event's kind; the dispatcher ignores unknown kinds
RULES = "include infra/emqx/manifold.conf in the broker's configuration; see docs/guides/emqx.md"
ACCESS = "let infra/emqx/acl.conf be the broker's only access rules; see docs/guides/emqx.md"


class _Inbox:
    """Records and acknowledges the messages that a client receives."""

    def __init__(self, client: Mqtt) -> None:
        self._client, self._came = client, asyncio.Event()
        self.messages: list[Message] = []
        client.on_message = self._take

    def _take(self, message: Message) -> None:
        self.messages.append(message)
        self._client.ack(message)
        self._came.set()

    async def until(self, question: Callable[[Message], bool]) -> bool:
        """Return whether a matching message has arrived, or arrives in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while not any(map(question, self.messages)):
                    self._came.clear()
                    await self._came.wait()
        return any(map(question, self.messages))


def probe_quietly(settings: Settings) -> list[Diagnostic]:
    """Return the findings of `probe`, without log lines: here a refusal is a finding."""
    ours = logging.getLogger("manifold")
    level = ours.level
    ours.setLevel(logging.CRITICAL)
    try:
        return asyncio.run(probe(settings))
    finally:
        ours.setLevel(level)


async def probe(settings: Settings) -> list[Diagnostic]:
    """Return the findings in order of dependency; checks that depend on a failed one are omitted."""
    vin = settings.mqtt_probe_username or f"probe-{secrets.token_hex(6)}"
    password = settings.mqtt_password.get_secret_value() or None
    async with AsyncExitStack() as stack:
        name = settings.mqtt_username_dispatcher
        service = Mqtt(settings.mqtt, f"{name}-{vin}", username=name, password=password, tls=settings.tls_files(name))
        service_inbox = _Inbox(service)
        await stack.enter_async_context(service)
        if not await _connects(service):
            remedy = "correct MANIFOLD_MQTT_URL, MANIFOLD_MQTT_PASSWORD, or the broker's users; see docs/guides/emqx.md"
            return [Diagnostic("broker", False, service.problem or f"{settings.mqtt} does not answer", remedy)]
        found = [Diagnostic("broker", True, settings.mqtt)]
        if not await _subscribes(service, f"{topics.EVENTS}/+/{vin}"):
            seen = f"{settings.mqtt_username_dispatcher} may not subscribe to events"
            return [*found, Diagnostic("broker's access rules", False, seen, ACCESS)]
        known = settings.mqtt_probe_username or None
        own = settings.mqtt_probe_password.get_secret_value() or None
        if urlsplit(settings.mqtt_for_vehicles).scheme in TLS_SCHEMES and not own:
            seen = (
                f"not asked: {settings.mqtt_for_vehicles} takes a vehicle's certificate, and no setting names one; "
                "events and access rules are not judged"
            )
            return [*found, Diagnostic("broker, for vehicles", True, seen)]
        vehicle = Mqtt(settings.mqtt_for_vehicles, vin, username=known, password=own, tls=settings.tls_files(vin))
        vehicle_inbox = _Inbox(vehicle)
        await stack.enter_async_context(vehicle)
        if not await _connects(vehicle):
            remedy = "name a vehicle that may connect: MANIFOLD_MQTT_PROBE_USERNAME, MANIFOLD_MQTT_PROBE_PASSWORD"
            seen = vehicle.problem or f"{settings.mqtt_for_vehicles} does not answer"
            return [*found, Diagnostic("broker, for vehicles", False, seen, remedy)]
        return found + await _judge(settings, vin, (service, service_inbox), (vehicle, vehicle_inbox))


async def _judge(settings: Settings, vin: str, platform: tuple[Mqtt, _Inbox], car: tuple[Mqtt, _Inbox]) -> list[Diagnostic]:
    """Check events and access rules by subscribing and publishing as a service and as a vehicle."""
    (service, service_inbox), (vehicle, vehicle_inbox) = platform, car
    prefix, other = settings.topic_prefix, f"{vin}-other"
    mine, others = topics.request_topic(prefix, vin, FORGED), topics.request_topic(prefix, other, FORGED)
    event, last = f"{topics.EVENTS}/{FORGED}/{vin}", topics.request_topic(prefix, vin, "last")

    filters = (topics.request_filter(prefix, vin), f"{prefix}/{vin}/#")
    wrong = [f"a vehicle may not subscribe {each}" for each in filters if not await _subscribes(vehicle, each)]
    await _publish(vehicle, event)
    await _publish(service, mine)
    missing = [kind for kind in EVENTS if not await service_inbox.until(partial(_is_event, kind))]
    if any(message.topic == event for message in service_inbox.messages):
        wrong.append("a vehicle may publish events")

    await _subscribes(vehicle, topics.request_filter(prefix, other))
    for topic in (others, last):
        await _publish(service, topic)
    if not await vehicle_inbox.until(lambda message: message.topic == last):
        wrong.append("a vehicle does not get what the dispatcher publishes to it")
    if any(message.topic == others for message in vehicle_inbox.messages):
        wrong.append("a vehicle gets what is addressed to another one")

    detail = f"no event {', '.join(missing)}" if missing else "connected, subscribed and acked are published"
    return [
        Diagnostic("broker's events", not missing, detail, RULES),
        Diagnostic("broker's access rules", not wrong, "; ".join(wrong) or "as expected", ACCESS),
    ]


def _is_event(kind: BrokerEvent, message: Message) -> bool:
    """Whether it is an event of this kind; an acknowledgement must contain the publish's properties, which carry `seq`."""
    if not message.topic.startswith(f"{topics.EVENTS}/{kind}/"):
        return False
    if kind is not BrokerEvent.ACKED:
        return True
    try:
        fields: Any = json.loads(message.payload)
        return bool(fields["pub_props"]["User-Property"][FORGED] == FORGED)
    except (ValueError, KeyError, TypeError):
        return False


async def _connects(client: Mqtt) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S):
            await client.wait_connected()
    return client.connected.is_set()


async def _subscribes(client: Mqtt, topic_filter: str) -> bool:
    try:
        async with asyncio.timeout(WAIT_S):
            await client.subscribe(topic_filter)
    except (Permanent, TimeoutError):
        return False
    return True


async def _publish(client: Mqtt, topic: str) -> bool:
    """Return whether the broker confirmed the publish, with any reason code."""
    try:
        async with asyncio.timeout(WAIT_S):
            await client.publish(topic, b"", user_properties=[(FORGED, FORGED)])
    except (Retryable, TimeoutError):
        return False
    return True
