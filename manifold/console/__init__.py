"""The `manifold` command: run the platform, send, query, ingest, rebuild, and diagnose.

One file per command, found by name. Guarantees: a line with a remedy for every user error, `--json` for every output, and
unabbreviated identifiers in every table. It may import every package, and no package imports it.
"""

from manifold.console._app import main

__all__ = ["main"]
