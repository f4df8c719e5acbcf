"""Makes an order to a campaign without a vehicle. Pure."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from manifold.contracts.campaigns import AddTargets, Amend, Command, Propose, decode, encode
from manifold.contracts.messages import Refused


def without_vehicle(payload: bytes, vin: str, names_it: Callable[[bytes], bool]) -> bytes | None:
    """The same order without the vehicle; None: nothing is left of it, or it cannot be told apart.

    A list of targets and the VINs of a plan lose the vehicle. A reason that names it goes. An order that names it in another
    place goes as a whole, and so does a plan that would be none without it.
    """
    order = decode(payload)
    if isinstance(order, Refused):
        return None
    left = _listed_without(order, vin)
    if left is not None and names_it(left.why.encode()):
        left = replace(left, why="")
    if left is None or names_it(again := encode(left)):
        return None
    return again


def _listed_without(order: Command, vin: str) -> Command | None:
    if isinstance(order, AddTargets):
        others = tuple(target for target in order.targets if target.vin != vin)
        return replace(order, targets=others) if others else None
    if isinstance(order, Propose | Amend):
        plan = _plan_without(order.plan, vin)
        return None if plan is None else replace(order, plan=plan)
    return order


def _plan_without(plan: dict[str, Any], vin: str) -> dict[str, Any] | None:
    """A plan whose lists of VINs do not have this one; None where one of them would be empty, which no plan may have."""
    again: dict[str, Any] = {}
    for name, value in plan.items():
        parts = value if name == "waves" and isinstance(value, list) else [value]
        left = [_without_vin(part, vin) for part in parts]
        if any(isinstance(part, dict) and part.get("vins") == [] for part in left):
            return None
        again[name] = left if parts is value else left[0]
    return again


def _without_vin(part: Any, vin: str) -> Any:
    if not isinstance(part, dict) or not isinstance(part.get("vins"), list):
        return part
    return part | {"vins": [each for each in part["vins"] if each != vin]}
