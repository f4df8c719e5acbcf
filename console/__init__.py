"""The `manifold` command: run the platform, send, ask, ingest, rebuild, and see that all is well."""

from console._app import app


def main() -> None:
    """The entry point of the console script."""
    app()


__all__ = ["app", "main"]
