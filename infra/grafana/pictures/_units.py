"""Numbers as text for people, in the units that dashboards use."""

import math

SUFFIX = "suffix: "  # beginning of a unit that is a text of the dashboard

# The scales of each unit, largest first: the smallest value that is shown with a suffix, which is also the divisor, and the
# suffix.
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
    """Return the value with three significant digits, and the unit."""
    if unit.startswith(SUFFIX):
        return f"{value:.3g} {unit.removeprefix(SUFFIX)}"
    if unit == "s" and value >= 120:
        return f"{value / 60:.3g} min"
    if not value:
        return f"0{_base_suffix(unit)}"
    scales = SCALES[unit]
    divisor, suffix = next((scale for scale in scales if abs(value) >= scale[0]), scales[-1])
    return f"{value / divisor:.3g}{suffix}"


def _base_suffix(unit: str) -> str:
    """Return the suffix of the unit itself, without a scale."""
    return {"s": " s", "bytes": " B", "Bps": " B/s", "ops": "/s", "percentunit": " %"}.get(unit, "")


def ticks(maximum: float, unit: str) -> list[float]:
    """Return up to five round values from 0 to `maximum`. For bytes, multiples of a power of two are round."""
    if maximum <= 0:
        return [0.0]
    base = 2.0 if unit == "bytes" else 10.0
    step = base ** math.floor(math.log(maximum / 4, base))
    factors = (1, 2) if unit == "bytes" else (1, 2, 2.5, 5, 10)
    if unit == "short":
        step = max(step, 1.0)  # counts are whole numbers
    step *= next((factor for factor in factors if maximum / (step * factor) <= 4.5), factors[-1])
    return [step * index for index in range(math.floor(maximum / step) + 1)]
