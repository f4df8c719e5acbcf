"""The part of requirements.lock that runs: `python runtime_lock.py requirements.lock FOLDER` writes spark.lock and runtime.lock.

The lock says under each package which packages need it. The runtime has the packages that the project needs, directly or not, and
not those that only the development group needs. Spark's Python packages have a file and a layer of their own.
Standard library only: it runs before anything is installed.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

PROJECT = "manifold (pyproject.toml)"
SPARK = "pyspark"
_NAME = re.compile(r"^([a-z0-9._-]+)(?:\[[^]]*\])?==")


def blocks(lock: str) -> dict[str, str]:
    """The lines of each package, hashes and all, by its name.

    Raises:
        ValueError: a line belongs to no package.
    """
    found: dict[str, list[str]] = {}
    name = ""
    for line in lock.splitlines():
        if line.startswith("#") or not line:
            continue
        if begins := _NAME.match(line):
            name = begins[1]
        if not name:
            raise ValueError(f"not a line of a lock: {line}")
        found.setdefault(name, []).append(line)
    return {name: "\n".join(lines) + "\n" for name, lines in found.items()}


def asked_by(block: str) -> set[str]:
    """Who asked for a package: names of packages, the project, or a group of it."""
    _, _, told = block.partition("    # via")
    return {line.strip(" #") for line in told.splitlines() if line.strip(" #")}


def runs(found: Mapping[str, str]) -> set[str]:
    """The names of the packages that the project needs where it runs."""
    wanted = {PROJECT}
    while more := {name for name, block in found.items() if name not in wanted and asked_by(block) & wanted}:
        wanted |= more
    return wanted - {PROJECT}


def main() -> None:
    """Write both files."""
    lock, folder = Path(sys.argv[1]), Path(sys.argv[2])
    found = blocks(lock.read_text())
    wanted = runs(found)
    (folder / "spark.lock").write_text(found[SPARK])
    (folder / "runtime.lock").write_text("".join(found[name] for name in sorted(wanted - {SPARK})))


if __name__ == "__main__":
    main()
