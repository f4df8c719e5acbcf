"""`python -m manifold.api`: the read side as an HTTP service, until SIGTERM or SIGINT."""

import gc
import sys

from manifold.runtime.service import run_service
from manifold.settings import Settings

GC_OBJECTS = 20_000  # new objects between two collections


async def _serve(settings: Settings) -> None:
    from manifold.api._server import serve

    # What is loaded by now stays: looking through it for garbage would hold up answers.
    gc.freeze()
    gc.set_threshold(GC_OBJECTS, 20, 50)
    await serve(settings)


def main() -> int:
    """The exit status: 0 after an orderly end, 2 for what the operator has to change."""
    return run_service("api", _serve)


if __name__ == "__main__":
    sys.exit(main())
