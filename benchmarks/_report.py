"""What every benchmark shares: facts about the machine, a table for people, and JSON for the record."""

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from contracts.settings import load_settings


@dataclass(frozen=True, slots=True)
class Line:
    """One thing measured. `limit` is the least ratio to `against` that is good enough; None: shown only for comparison."""

    name: str
    count: int
    seconds: float
    ratio: float | None = None  # of this rate to the rate of `against`
    against: str | None = None
    limit: float | None = None

    @property
    def rate(self) -> float:
        """Count a second."""
        return self.count / self.seconds

    @property
    def is_good(self) -> bool:
        """Whether it keeps its limit."""
        return self.limit is None or (self.ratio is not None and self.ratio >= self.limit)


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes by the wall clock."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def machine() -> dict[str, object]:
    """What the figures depend on."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def report(name: str, unit: str, lines: Sequence[Line], facts: Mapping[str, object]) -> bool:
    """Print the table, write `<home>/bench/<name>.json`, and say whether every limit is kept."""
    table = Table("what", unit, "seconds", f"{unit}/s", "ratio", "limit", title=name)
    for line in lines:
        ratio = "" if line.ratio is None else f"{line.ratio:.2f} of {line.against}"
        limit = "" if line.limit is None else f"{line.limit} {'kept' if line.is_good else 'MISSED'}"
        table.add_row(line.name, f"{line.count:,}", f"{line.seconds:.2f}", f"{line.rate:,.0f}", ratio, limit)
    console = Console()
    console.print(table)
    console.print(" ".join(f"{key}={value}" for key, value in facts.items()), highlight=False, soft_wrap=True)
    good = all(line.is_good for line in lines)
    folder = Path(load_settings().home) / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    measured = [asdict(line) | {"rate": line.rate, "good": line.is_good} for line in lines]
    (folder / f"{name}.json").write_text(
        json.dumps({"machine": dict(facts), "unit": unit, "lines": measured, "good": good}, indent=1)
    )
    return good


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
