"""Every session case, with real vehicles on MQTT 3.1.1 and 5."""

from contracts.outcomes import Outcome
from contracts.topics import Sign
from tests.dispatcher.platform import Platform, Vehicle
from tests.servers import wait_until


def test_a_vehicle_that_is_here_and_subscribed_gets_a_batch_at_once(platform: Platform, protocol: int) -> None:
    vehicle = Vehicle(platform, protocol=protocol).connect()
    vehicle.say(Sign.ONLINE)
    wait_until(lambda: platform.presence(vehicle.vin).get("connected") == "yes")

    seq = platform.enqueue(vehicle.vin, request_id="task_ota_1", data=b"hello", data_id="d1")

    (got,) = vehicle.waits_for(1)
    assert got.topic == f"agent/{vehicle.vin}/proxy/request/task_ota_1"
    assert (got.payload, got.dup) == (b"hello", False)
    assert got.seq == (seq if protocol == 5 else None)
    record = wait_until(lambda: [r for r in platform.outcomes() if r.vin == vehicle.vin])[0]
    assert (record.seq, record.outcome, record.attempts) == (seq, Outcome.DELIVERED, 1)
    assert record.dispatched_ms is not None
    assert record.dispatched_ms <= record.ended_ms
    assert platform.pending(vehicle.vin) == []
    vehicle.leave()
