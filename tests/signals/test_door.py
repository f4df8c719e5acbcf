"""The whole way of a message, with a real RabbitMQ, a real Redis, and a client that is not ours."""

import json

from adapters.day_keys import DayKeys
from contracts.signals import topology
from contracts.signals.records import read_raw
from tests.servers import wait_until
from tests.signals.gateway import Door, Gateway, body_of


def test_a_signed_message_is_processed_recorded_and_acknowledged(door: Door, gateway: Gateway) -> None:
    plain = b'{"readings": [{"type": "temperature", "value": 21.5, "unit": "celsius"}]}'
    body = body_of(payload=plain)
    headers = gateway.send_signed(body)

    about, out = gateway.get(topology.PROCESSED)
    processed = json.loads(out)
    [record] = door.recorded()
    raw = read_raw(record.payload)
    wait_until(lambda: gateway.count(topology.RAW) == 0)

    assert processed["deviceId"] == "device-1"
    assert [reading["value"] for reading in processed["processedData"]["readings"]] == [21.5]
    assert about.headers["x-correlation-id"] == headers["x-correlation-id"] == processed["correlationId"]
    assert raw.device_id == "device-1"
    assert DayKeys.of(door.settings).open(raw.sealed, seq=record.seq) == plain
    assert plain not in record.payload
