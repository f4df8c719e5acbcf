"""`python -m manifold.recorder`: one recorder process, until SIGTERM or SIGINT."""

import sys

from manifold.recorder import Recorder
from manifold.runtime.gc_tuning import freeze_heap
from manifold.runtime.service import run_service, stop_event
from manifold.settings import Settings


async def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    freeze_heap()
    await Recorder(settings).run(stop_event())


def main() -> int:
    """Run the recorder and return the exit status: 0 after an orderly end, 2 for an error that the operator has to fix."""
    return run_service("recorder", serve, node=True)


if __name__ == "__main__":
    sys.exit(main())
