"""Logging, configured once, by entry points only: one line for each event, as key=value for people or as JSON for programs."""

import logging
import sys

import structlog

TALKATIVE = ("great_expectations", "httpx", "py4j", "pyiceberg")  # libraries that tell at `info` what only their authors need


def configure_logging(service: str, *, json: bool = False, level: str = "info") -> None:
    """Send every log line of this process, structlog's and the libraries', to standard error with `service` in it.

    Args:
        service: what the process is, such as `recorder` or `dispatcher-1`.
        json: one JSON object a line instead of key=value.
        level: the least important level that is written.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.contextvars.bind_contextvars(service=service)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    render: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if not json:
        render = structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "service", "event"], drop_missing=True)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render]
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
