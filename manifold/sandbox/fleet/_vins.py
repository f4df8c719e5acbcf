"""VINs of the simulated fleet: valid according to ISO 3779, with check digit, and always the same for a seed."""

import random

from manifold.contracts.names import Owner, vin_check_digit

_MAKERS = ("1FT", "1G1", "2HG", "3VW", "4T1", "5YJ", "JHM", "KMH", "SAL", "VF1", "WAU", "WBA", "WDB", "YV1", "ZFA")
_LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ0123456789"  # I, O and Q are excluded, because they look like digits
_YEARS = "LMNPRSTVWXY"  # model years 2020 to 2030
_SERIALS = 10**6  # number of serial numbers, of six digits


def vins(count: int, seed: int) -> list[Owner]:
    """Return `count` different VINs. The VINs of a smaller fleet are the first VINs of a larger fleet with the same seed.

    Raises:
        ValueError: `count` is negative.
    """
    if count < 0:
        raise ValueError(f"count={count}; a fleet has 0 vehicles or more")
    rng = random.Random(f"vins/{seed}")
    distinct: dict[Owner, None] = {}  # in the order of drawing
    while len(distinct) < count:
        distinct[_random_vin(rng)] = None
    return list(distinct)


def _random_vin(rng: random.Random) -> Owner:
    descriptor = "".join(rng.choices(_LETTERS, k=5))
    year, plant = rng.choice(_YEARS), rng.choice(_LETTERS)
    serial = f"{rng.randrange(_SERIALS):06d}"
    head = f"{rng.choice(_MAKERS)}{descriptor}"
    tail = f"{year}{plant}{serial}"
    check_digit = vin_check_digit(f"{head}0{tail}")  # the digit in its place has the weight 0
    return Owner(f"{head}{check_digit}{tail}")
