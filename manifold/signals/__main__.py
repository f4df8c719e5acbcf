"""`python -m manifold.signals`: one AMQP door, until SIGTERM or SIGINT."""

import sys

from manifold.runtime.service import run_service, stop_event
from manifold.settings import Settings
from manifold.signals import Signals


async def serve(settings: Settings) -> None:
    """Run until the process is told to end."""
    await Signals(settings).run(stop_event())


def main() -> int:
    """The exit status: 0 after an orderly end, 2 for what the operator has to change."""
    return run_service("signals", serve)


if __name__ == "__main__":
    sys.exit(main())
