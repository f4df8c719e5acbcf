"""`python runtime_lock.py requirements.lock FOLDER`: writes spark.lock and runtime.lock, the runtime part of the lock file.

The lock file names, under each package, the packages that require it. The runtime part has the packages that the project
requires, directly or indirectly, without those that only the development group requires. Spark's Python package has a file of its
own, and so a layer of its own in the image. This script uses the standard library only, because it runs before anything is
installed.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

PROJECT = "manifold (pyproject.toml)"
SPARK = "pyspark"
_NAME = re.compile(r"^([a-z0-9._-]+)(?:\[[^]]*\])?==")


def blocks(lock: str) -> dict[str, str]:
    """Return the lines of each package, including its hashes, by the package's name.

    Raises:
        ValueError: a line belongs to no package.
    """
    lines_by_name: dict[str, list[str]] = {}
    name = ""
    for line in lock.splitlines():
        if line.startswith("#") or not line:
            continue
        if first_line := _NAME.match(line):
            name = first_line[1]
        if not name:
            raise ValueError(f"not a line of a lock: {line}")
        lines_by_name.setdefault(name, []).append(line)
    return {name: "\n".join(lines) + "\n" for name, lines in lines_by_name.items()}


def required_by(block: str) -> set[str]:
    """Return what requires a package: names of packages, the project, or one of its groups."""
    _, _, requirers = block.partition("    # via")
    return {line.strip(" #") for line in requirers.splitlines() if line.strip(" #")}


def runtime_packages(lines_by_name: Mapping[str, str]) -> set[str]:
    """Return the names of the packages that the project requires at run time, directly or indirectly."""
    required = {PROJECT}
    while more := {name for name, block in lines_by_name.items() if name not in required and required_by(block) & required}:
        required |= more
    return required - {PROJECT}


def main() -> None:
    """Write both files."""
    lock, folder = Path(sys.argv[1]), Path(sys.argv[2])
    lines_by_name = blocks(lock.read_text())
    required = runtime_packages(lines_by_name)
    (folder / "spark.lock").write_text(lines_by_name[SPARK])
    (folder / "runtime.lock").write_text("".join(lines_by_name[name] for name in sorted(required - {SPARK})))


if __name__ == "__main__":
    main()
