"""Benchmarks, one module each: what it measures, and the rival or limit that it is compared with in the same run.

Each has `AIMS`, the bounds of some of its rows by their names, and `run(size)`, which returns the rows. `python -m benchmarks`
runs them, and modules with a leading underscore are what they share.
"""

import pkgutil


def names() -> list[str]:
    """Return the names of all benchmarks."""
    return [
        module.name
        for module in pkgutil.iter_modules(__path__)
        if module.name not in ("__main__", "page") and module.name[0] != "_"
    ]
