"""Logging, configured once, by entry points only: one line per event, as key=value for people or JSON for programs."""

import logging
import sys

import structlog

TALKATIVE = ("great_expectations", "httpx", "py4j", "pyiceberg")  # libraries that are too verbose at `info`


def configure_logging(service: str, *, json: bool = False, level: str = "info") -> None:
    """Send all log lines of this process, from structlog and libraries, to stderr with the field `service`.

    Args:
        service: name of the process, such as `recorder` or `dispatcher-1`.
        json: one JSON object per line instead of key=value.
        level: minimum level.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    render: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if not json:
        render = structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "service", "event"], drop_missing=True)

    def name_service(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        """Add the field `service`. Not a context variable: threads that a library starts, as for micro-batches, lack these."""
        event["service"] = service
        return event

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, name_service, render],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
