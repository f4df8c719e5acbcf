"""Several dispatchers; for their failures see tests/dispatcher/test_faults.py and tests/replicas."""

from manifold.contracts.topics import Sign
from tests.dispatcher.cases.ground import Ground
from tests.dispatcher.vehicle import Vehicle


def test_two_healthy_replicas_never_deliver_twice(ground: Ground) -> None:
    """Redis decides who claims."""
    second = ground.platform.start_dispatcher(1)
    vehicles = [ground.here(Vehicle(ground, protocol=(4, 5)[n % 2]).connect()) for n in range(10)]
    seqs = []
    for n in range(20):
        seqs.append(ground.batch(*(vehicle.vin for vehicle in vehicles)))
        for vehicle in vehicles[n % 10 :: 3]:
            vehicle.say(Sign.HEARTBEAT)

    for vehicle in vehicles:
        ground.delivered(vehicle, *seqs)
        assert len(vehicle.got) == len(seqs)
        vehicle.leave()
    second.stop()
