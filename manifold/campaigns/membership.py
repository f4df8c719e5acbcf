"""Which target belongs to which wave: named ones first, then a draw that is the same each time and differs between campaigns."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from manifold.campaigns.plan import REST, Plan
from manifold.campaigns.quantities import BASIS_POINTS, share
from manifold.contracts.campaigns import Target
from manifold.contracts.messages import Refused, shown

Members = tuple[tuple[Target, ...], ...]  # one for each wave, in the order of the draw
Numbers = NDArray[np.int64]


class Roster:
    """The targets of a campaign, numbered by wave, then by the draw. Columns hold what a number stands for."""

    def __init__(self, waves: Members = ()) -> None:
        targets = list(chain.from_iterable(waves))
        self.vins = tuple(target.vin for target in targets)
        self.number_of = {vin: number for number, vin in enumerate(self.vins)}
        self.wave_count = len(waves)
        self.waves = np.repeat(np.arange(len(waves), dtype=np.int32), [len(wave) for wave in waves])
        names = dict.fromkeys(target.zone for target in targets)
        self.zone_names: tuple[str | None, ...] = tuple(names)
        codes = {zone: code for code, zone in enumerate(self.zone_names)}
        self.zones = np.fromiter((codes[target.zone] for target in targets), np.int32, len(targets))

    def __len__(self) -> int:
        return len(self.vins)

    def __contains__(self, vin: object) -> bool:
        return vin in self.number_of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Roster) and all(
            mine == theirs for mine, theirs in zip(self._content(), other._content(), strict=True)
        )

    __hash__ = None  # type: ignore[assignment]  # it is as large as a list

    def _content(self) -> tuple[object, ...]:
        return self.vins, self.wave_count, self.waves.tobytes(), [self.zone_names[code] for code in self.zones]

    def wave_of(self, vin: str) -> int:
        """The wave of a target."""
        return int(self.waves[self.number_of[vin]])

    def zone_of(self, vin: str) -> str | None:
        """The zone of a target, as the list has it."""
        return self.zone_names[int(self.zones[self.number_of[vin]])]

    def vins_of(self, wave: int) -> Sequence[str]:
        """The targets of a wave, in the order of the draw."""
        first, after = np.searchsorted(self.waves, [wave, wave + 1])
        return self.vins[first:after]

    def numbers(self, vins: Iterable[str]) -> Numbers:
        """The numbers of those of `vins` that are targets, ascending, each once."""
        found = (number for vin in vins if (number := self.number_of.get(vin)) is not None)
        return np.unique(np.fromiter(found, np.int64))

    def groups(self) -> Iterator[tuple[int, str | None, int]]:
        """How many targets each wave has in each zone: wave, zone, number."""
        width = max(1, len(self.zone_names))
        keys, numbers = np.unique(self.waves * width + self.zones, return_counts=True)
        for key, number in zip(keys.tolist(), numbers.tolist(), strict=True):
            yield key // width, self.zone_names[key % width], number


def assign(plan: Plan, listed: Iterable[Target]) -> Members | Refused:
    """The members of each wave, or why the waves do not fit the list.

    A VIN that is listed or named twice counts once, in the first wave that names it. VINs that a wave names are members
    whether the list has them or not. Targets that no wave takes are not members.
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
    drawn = _drawn(plan.campaign, list(targets.values()))
    waves: list[list[Target]] = [[] for _ in plan.waves]
    for target in drawn if named else ():
        if target.vin in named:
            waves[named[target.vin]].append(target)
    unnamed = (target for target in drawn if target.vin not in named)
    for place, wave in enumerate(plan.waves):
        waves[place] += islice(unnamed, _wave_size(wave.size, len(targets)))
        if not waves[place]:
            return Refused(f"waves[{place}].size {shown(wave.size)}: no target is left for this wave; make it or others smaller")
    return tuple(map(tuple, waves))


def _drawn(campaign: str, targets: Sequence[Target]) -> list[Target]:
    """The targets in the order of their draws: digests of campaign and VIN, which are compared as bytes."""
    prefix = campaign.encode() + b"\0"
    digests = b"".join([hashlib.sha256(prefix + target.vin.encode()).digest() for target in targets])
    words = np.frombuffer(digests, ">u8").reshape(-1, 4).astype(np.uint64)
    return [targets[place] for place in np.lexsort(words.T[::-1]).tolist()]


def _wave_size(size: int | str | None, target_count: int) -> int:
    """Return how many targets a wave of this `size` draws: a number, a share of all (at least 1), the rest, or none."""
    if size is None:
        return 0
    if isinstance(size, int):
        return min(size, target_count)  # a plan may state any integer, and islice takes at most sys.maxsize
    return target_count if size == REST else max(1, share(size) * target_count // BASIS_POINTS)
