"""Startup and shutdown of a service: settings, logging, event loop, signals, exit status."""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
import uvloop

from manifold.contracts.errors import Permanent
from manifold.runtime.gc_tuning import freeze_heap, skip_final_collection
from manifold.runtime.log import configure_logging
from manifold.settings import Settings, load_settings


def run_service(name: str, serve: Callable[[Settings], Coroutine[Any, Any, None]], *, node: bool = False) -> int:
    """Run `serve` with the settings until it returns. With `node`, the log name includes the recorder's node number.

    Returns:
        The exit status: 0 after an orderly stop, 2 for a problem that the operator must fix, which is written to stderr.
    """
    skip_final_collection()
    try:
        settings = load_settings()
        log_name = f"{name}-{settings.node}" if node else name
        configure_logging(log_name, json=settings.log_format == "json", level=settings.log_level)
        freeze_heap()
        uvloop.run(serve(settings))
    except Permanent as exc:
        sys.stderr.write(f"{name}: {exc}\n")
        return 2
    structlog.get_logger(name).info(f"{name} stopped")
    return 0


def stop_event() -> asyncio.Event:
    """Return an event of the running loop that is set on SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)
    return stop
