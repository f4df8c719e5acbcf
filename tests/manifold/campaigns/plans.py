"""Plans and worlds shared by several tests."""

from collections.abc import Sequence
from typing import Any

from manifold.campaigns.quantities import instant_ms
from manifold.campaigns.rehearsal import Fleet, Simulation
from manifold.campaigns.step import Policy
from manifold.contracts import campaigns as r

NOW = instant_ms("2026-12-01T12:00:00Z")
ALWAYS = ((0, 1 << 60),)
POLICY = Policy()


def vins(number: int) -> tuple[str, ...]:
    """This many VINs."""
    return tuple(f"VIN{place:05}" for place in range(number))


def document(*, number: int = 10, **fields: Any) -> dict[str, Any]:
    """The smallest plan for this many vehicles, plus further fields."""
    smallest = {
        "campaign": "maps-47",
        "data_id": "map_47",
        "targets": {"vins": list(vins(number))},
        "ends": "2026-12-20T00:00:00Z",
    }
    return smallest | fields


def fleet_here(number: int, **how: Any) -> Fleet:
    """A fleet that is always connected."""
    return Fleet(dict.fromkeys(vins(number), ALWAYS), **how)


def proposed(plan: dict[str, Any], fleet: Fleet, targets: Sequence[r.Target] = (), policy: Policy = POLICY) -> Simulation:
    """A world whose plan is proposed and approved at `NOW`."""
    world, name = Simulation(fleet, policy, NOW), plan["campaign"]
    world.order(r.Propose(name, "author", plan=plan))
    if targets:
        world.order(r.AddTargets(name, "author", targets=tuple(targets)))
    for person in range(plan.get("approve", {}).get("people", 1)):
        world.order(r.Approve(name, f"approver {person + 1}"))
    return world
