"""Which target belongs to which wave: named ones first, then a draw that is the same each time and differs between campaigns."""

import hashlib
from collections.abc import Iterable
from itertools import islice

from manifold.campaigns.plan import REST, Plan
from manifold.campaigns.quantities import WHOLE, share
from manifold.contracts.campaigns import Target
from manifold.contracts.messages import Refused, shown

Members = tuple[tuple[Target, ...], ...]  # one for each wave, in the order of the draw


def draw(campaign: str, vin: str) -> bytes:
    """The place of a vehicle in a campaign's draw."""
    return hashlib.sha256(campaign.encode() + b"\0" + vin.encode()).digest()


def assign(plan: Plan, listed: Iterable[Target]) -> Members | Refused:
    """The members of each wave, or why the waves do not fit the list.

    A VIN that is listed or named twice counts once, in the first wave that names it. VINs that a wave names are members
    whether the list has them or not. Targets that no wave takes are no members.
    """
    targets: dict[str, Target] = {}
    for target in listed:
        targets.setdefault(target.vin, target)
    place_of = {wave.name: place for place, wave in enumerate(plan.waves)}
    named: dict[str, int] = {}
    for target in targets.values():
        if target.wave is not None:
            if target.wave not in place_of:
                return Refused(
                    f"targets: {target.vin} is listed for wave {shown(target.wave)}; name one of {', '.join(place_of)}"
                )
            named[target.vin] = place_of[target.wave]
    for place, wave in enumerate(plan.waves):
        for vin in wave.vins:
            targets.setdefault(vin, Target(vin))
            named[vin] = min(place, named.get(vin, place))
    drawn = sorted(targets.values(), key=lambda target: draw(plan.campaign, target.vin))
    waves: list[list[Target]] = [[] for _ in plan.waves]
    for target in drawn:
        if target.vin in named:
            waves[named[target.vin]].append(target)
    unnamed = iter([target for target in drawn if target.vin not in named])
    for place, wave in enumerate(plan.waves):
        waves[place] += islice(unnamed, _size(wave.size, len(targets)))
        if not waves[place]:
            return Refused(f"waves[{place}].size {shown(wave.size)}: no target is left for this wave; make it or others smaller")
    return tuple(map(tuple, waves))


def _size(size: int | str | None, whole: int) -> int:
    if size is None:
        return 0
    if isinstance(size, int):
        return min(size, whole)  # JSON's numbers have no end
    return whole if size == REST else max(1, share(size) * whole // WHOLE)
