"""Benchmarks: each module measures one part of Manifold and compares it with a rival or a limit in the same run.

Each module has `AIMS`, the bounds of some of its rows by name, and `run(size)`, which returns the rows. `python -m benchmarks`
runs the benchmarks. Modules with a leading underscore contain what several benchmarks share.
"""

import pkgutil


def names() -> list[str]:
    """Return the names of all benchmarks."""
    return [
        module.name
        for module in pkgutil.iter_modules(__path__)
        if module.name not in ("__main__", "page") and module.name[0] != "_"
    ]
