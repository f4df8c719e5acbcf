"""Numbers as people read them, by the units that dashboards name."""

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
    if unit == "s" and value >= 120:
        return f"{value / 60:.3g} min"
    scales = SCALES[unit]
    by, word = next((scale for scale in scales if abs(value) >= scale[0]), scales[-1]) if value else (1.0, _plain(unit))
    return f"{value / by:.3g}{word}"


def _plain(unit: str) -> str:
    """The unit's own word."""
    return {"s": " s", "bytes": " B", "Bps": " B/s", "ops": "/s", "percentunit": " %"}.get(unit, "")
