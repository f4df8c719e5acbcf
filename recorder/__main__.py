"""`python -m recorder`: one recorder process, until SIGTERM or SIGINT."""

import asyncio
import signal
import sys

import structlog
import uvloop

from adapters.log import configure_logging
from contracts.errors import Permanent
from contracts.settings import Settings, load_settings
from recorder import Recorder


async def serve(settings: Settings) -> None:
    """Run until the process is told to end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for told in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(told, stop.set)
    await Recorder(settings).run(stop)


def main() -> int:
    """Exit status 0 after an orderly end, 2 for what the operator has to change."""
    try:
        settings = load_settings()
        configure_logging(f"recorder-{settings.node}", json=settings.log_format == "json", level=settings.log_level)
        uvloop.run(serve(settings))
    except Permanent as exc:
        sys.stderr.write(f"recorder: {exc}\n")
        return 2
    structlog.get_logger(__name__).info("recorder stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
