"""VINs of the simulated fleet: valid by ISO 3779 with check digit, and deterministic for a seed."""

import random
from itertools import islice

from manifold.contracts.names import Owner, vin_check_digit

_MAKERS = ("1FT", "1G1", "2HG", "3VW", "4T1", "5YJ", "JHM", "KMH", "SAL", "VF1", "WAU", "WBA", "WDB", "YV1", "ZFA")
_LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ0123456789"  # I, O and Q are excluded, because they look like digits
_YEARS = "LMNPRSTVWXY"  # model years 2020 to 2030
_SERIALS = 10**6


def vins(count: int, seed: int) -> list[Owner]:
    """Return `count` different VINs. A larger fleet of the same seed begins with the smaller one.

    Raises:
        ValueError: `count` is negative.
    """
    if count < 0:
        raise ValueError(f"count={count}; a fleet has 0 vehicles or more")
    draw = random.Random(f"vins/{seed}")
    found: dict[Owner, None] = {}
    while len(found) < count:
        found.update(dict.fromkeys(_vin(draw) for _ in range(count - len(found))))
    return list(islice(found, count))


def _vin(draw: random.Random) -> Owner:
    descriptor = "".join(draw.choices(_LETTERS, k=5))
    tail = f"{draw.choice(_YEARS)}{draw.choice(_LETTERS)}{draw.randrange(_SERIALS):06d}"
    vin = f"{draw.choice(_MAKERS)}{descriptor}0{tail}"
    return Owner(f"{vin[:8]}{vin_check_digit(vin)}{vin[9:]}")
