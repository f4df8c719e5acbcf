"""`python -m manifold.signals`: run one AMQP door until SIGTERM or SIGINT."""

import sys

from manifold.runtime.service import run_service, stop_event
from manifold.settings import Settings
from manifold.signals import Signals


async def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    await Signals(settings).run(stop_event())


def main() -> int:
    """Run the service; return the exit status: 0 after an orderly stop, 2 for a problem that the operator must fix."""
    return run_service("signals", serve)


if __name__ == "__main__":
    sys.exit(main())
