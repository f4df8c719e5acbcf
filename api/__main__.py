"""`python -m api`: the read side as an HTTP service, until SIGTERM or SIGINT."""

import gc
import sys

import structlog
import uvloop

from adapters.log import configure_logging
from adapters.no_pandas import leave_pandas_out
from contracts.errors import Permanent
from contracts.settings import load_settings

GC_OBJECTS = 20_000  # new objects between two looks for garbage


def main() -> int:
    """Exit status 0 after an orderly end, 2 for what the operator has to change."""
    leave_pandas_out()
    from api._server import serve  # which loads PyArrow

    try:
        settings = load_settings()
        configure_logging("api", json=settings.log_format == "json", level=settings.log_level)
        # What is loaded by now stays: looking through it for garbage would hold up answers.
        gc.freeze()
        gc.set_threshold(GC_OBJECTS, 20, 50)
        uvloop.run(serve(settings))
    except Permanent as exc:
        sys.stderr.write(f"api: {exc}\n")
        return 2
    structlog.get_logger(__name__).info("api stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
