"""Assigns targets to waves: first the targets that waves name, then the others in an order that the campaign's id determines."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from manifold.campaigns.plan import REST, Plan
from manifold.campaigns.quantities import BASIS_POINTS, share
from manifold.contracts.campaigns import Target
from manifold.contracts.messages import Refused, shown

Members = tuple[tuple[Target, ...], ...]  # for each wave its targets, in the order of the draw
Numbers = NDArray[np.int64]


class Roster:
    """The targets of a campaign, numbered by wave, then by the draw. A target's number is its index in every column."""

    def __init__(self, waves: Members = ()) -> None:
        targets = list(chain.from_iterable(waves))
        self.vins = tuple(target.vin for target in targets)
        self.number_of = {vin: number for number, vin in enumerate(self.vins)}
        self.wave_count = len(waves)
        self.waves = np.repeat(np.arange(len(waves), dtype=np.int32), [len(wave) for wave in waves])
        distinct_zones = dict.fromkeys(target.zone for target in targets)
        self.zone_names: tuple[str | None, ...] = tuple(distinct_zones)
        zone_codes = {zone: code for code, zone in enumerate(self.zone_names)}
        self.zones = np.fromiter((zone_codes[target.zone] for target in targets), np.int32, len(targets))

    def __len__(self) -> int:
        return len(self.vins)

    def __contains__(self, vin: object) -> bool:
        return vin in self.number_of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Roster) and self._content() == other._content()

    __hash__ = None  # type: ignore[assignment]  # unhashable, because it is as large as the list of targets

    def _content(self) -> tuple[object, ...]:
        return self.vins, self.wave_count, self.waves.tobytes(), [self.zone_names[code] for code in self.zones]

    def wave_of(self, vin: str) -> int:
        """The wave of a target."""
        return int(self.waves[self.number_of[vin]])

    def zone_of(self, vin: str) -> str | None:
        """The zone of a target as given in the list of targets; None if the list gives none."""
        return self.zone_names[int(self.zones[self.number_of[vin]])]

    def vins_of(self, wave: int) -> Sequence[str]:
        """The VINs of a wave, in the order of the draw."""
        first, next_first = np.searchsorted(self.waves, [wave, wave + 1])  # targets are numbered by wave
        return self.vins[first:next_first]

    def numbers(self, vins: Iterable[str]) -> Numbers:
        """Return the distinct numbers of the targets among `vins`, in ascending order."""
        target_numbers = (number for vin in vins if (number := self.number_of.get(vin)) is not None)
        return np.unique(np.fromiter(target_numbers, np.int64))

    def groups(self) -> Iterator[tuple[int, str | None, int]]:
        """Yield each wave and zone that occur together, with the number of their targets."""
        zone_count = max(1, len(self.zone_names))  # an empty roster has no zone, and 0 is no divisor
        # Each pair of a wave and a zone becomes one number, because that is what `np.unique` counts.
        keys, sizes = np.unique(self.waves * zone_count + self.zones, return_counts=True)
        for key, size in zip(keys.tolist(), sizes.tolist(), strict=True):
            wave, zone_code = divmod(key, zone_count)
            yield wave, self.zone_names[zone_code], size


def assign(plan: Plan, listed: Iterable[Target]) -> Members | Refused:
    """Return the members of each wave, or why the waves do not fit the list of targets.

    A VIN that occurs several times counts once. A VIN that several waves name is a member of the first of these waves. A VIN that
    a wave names is a member even if the list lacks it. Listed targets that fit into no wave are not members.
    """
    targets: dict[str, Target] = {}
    for target in listed:
        targets.setdefault(target.vin, target)
    index_of_wave = {wave.name: index for index, wave in enumerate(plan.waves)}
    named: dict[str, int] = {}  # VIN → index of the first wave that names it, or for which it is listed
    for target in targets.values():
        if target.wave is not None:
            if target.wave not in index_of_wave:
                return Refused(
                    f"targets: {target.vin} is listed for wave {shown(target.wave)}; name one of {', '.join(index_of_wave)}"
                )
            named[target.vin] = index_of_wave[target.wave]
    for index, wave in enumerate(plan.waves):
        for vin in wave.vins:
            targets.setdefault(vin, Target(vin))
            named[vin] = min(index, named.get(vin, index))
    drawn = _in_draw_order(plan.campaign, list(targets.values()))
    members: list[list[Target]] = [[] for _ in plan.waves]
    if named:  # a list may be long, and most plans name no targets
        for target in drawn:
            if target.vin in named:
                members[named[target.vin]].append(target)
    unnamed = (target for target in drawn if target.vin not in named)
    for index, wave in enumerate(plan.waves):
        members[index] += islice(unnamed, _drawn_count(wave.size, len(targets)))  # the next targets, after those of earlier waves
        if not members[index]:
            return Refused(f"waves[{index}].size {shown(wave.size)}: no target is left for this wave; make it or others smaller")
    return tuple(map(tuple, members))


def _in_draw_order(campaign: str, targets: Sequence[Target]) -> list[Target]:
    """Return the targets, sorted by the SHA-256 digests of campaign and VIN. Digests are compared as bytes."""
    prefix = campaign.encode() + b"\0"
    digests = b"".join([hashlib.sha256(prefix + target.vin.encode()).digest() for target in targets])
    # Each digest becomes a row of four big-endian words; `lexsort` takes columns, the most significant one last.
    words = np.frombuffer(digests, ">u8").reshape(-1, 4).astype(np.uint64)
    order = np.lexsort(words.T[::-1])
    return [targets[index] for index in order.tolist()]


def _drawn_count(size: int | str | None, target_count: int) -> int:
    """Return how many of `target_count` targets a wave draws, if that many are left.

    The `size` of the wave is a number, a share of all targets (which draws at least 1), "rest" (all), or None (no target).
    """
    if size is None:
        return 0
    if isinstance(size, int):
        return min(size, target_count)  # a plan may contain any integer, but `islice` accepts at most sys.maxsize
    return target_count if size == REST else max(1, share(size) * target_count // BASIS_POINTS)
