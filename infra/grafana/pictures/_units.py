"""Numbers as people read them, by the units that dashboards name."""

import math

SUFFIX = "suffix: "  # a unit of a dashboard's own

SCALES = {
    "s": ((1.0, " s"), (1e-3, " ms"), (1e-6, " µs")),
    "bytes": ((1 << 30, " GiB"), (1 << 20, " MiB"), (1 << 10, " KiB"), (1, " B")),
    "Bps": ((1e9, " GB/s"), (1e6, " MB/s"), (1e3, " kB/s"), (1, " B/s")),
    "ops": ((1e3, "k/s"), (1, "/s")),
    "short": ((1e6, " M"), (1e3, " k"), (1, "")),
    "none": ((1, ""),),
    "percentunit": ((1e-2, " %"),),
}


def shown(value: float, unit: str) -> str:
    """Three digits, and the unit."""
    if unit.startswith(SUFFIX):
        return f"{value:.3g} {unit.removeprefix(SUFFIX)}"
    if unit == "s" and value >= 120:
        return f"{value / 60:.3g} min"
    scales = SCALES[unit]
    by, word = next((scale for scale in scales if abs(value) >= scale[0]), scales[-1]) if value else (1.0, _plain(unit))
    return f"{value / by:.3g}{word}"


def _plain(unit: str) -> str:
    """The unit's own word."""
    return {"s": " s", "bytes": " B", "Bps": " B/s", "ops": "/s", "percentunit": " %"}.get(unit, "")


def ticks(most: float, unit: str) -> list[float]:
    """Up to five round values from 0 to `most`: of bytes, as powers of two are round."""
    if most <= 0:
        return [0.0]
    base = 2.0 if unit == "bytes" else 10.0
    step = base ** math.floor(math.log(most / 4, base))
    steps = (1, 2) if unit == "bytes" else (1, 2, 2.5, 5, 10)
    if unit == "short":
        step = max(step, 1.0)  # of what is counted there is no half
    step *= next((by for by in steps if most / (step * by) <= 4.5), steps[-1])
    return [step * n for n in range(math.floor(most / step) + 1)]
