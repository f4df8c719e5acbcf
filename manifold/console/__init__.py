"""The `manifold` command: run the platform, send, ask, ingest, rebuild, and see that all is well.

One file a command, found by name. It promises a line with a remedy for every mistake of a user, `--json` wherever something is
told, and whole identifiers in every table. It may import every room, and no room imports it.
"""

from manifold.console._app import main

__all__ = ["main"]
