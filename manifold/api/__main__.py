"""`python -m manifold.api`: the read side as an HTTP service, until SIGTERM or SIGINT."""

import gc
import sys

from manifold.runtime.service import run_service
from manifold.settings import Settings

GC_OBJECTS = 20_000  # allocations between two garbage collections


async def _serve(settings: Settings) -> None:
    from manifold.api._server import serve

    # The objects of loaded modules are permanent. Scanning them in each collection would delay responses.
    gc.freeze()
    gc.set_threshold(GC_OBJECTS, 20, 50)
    await serve(settings)


def main() -> int:
    """Run the service; return the exit status: 0 after an orderly stop, 2 for a problem that the operator must fix."""
    return run_service("api", _serve)


if __name__ == "__main__":
    sys.exit(main())
