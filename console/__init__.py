"""The `manifold` command: run the platform, send, ask, ingest, rebuild, and see that all is well."""

from console._app import main

__all__ = ["main"]
