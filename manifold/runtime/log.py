"""Logging: one line per event, as key=value for people or JSON for programs. Only entry points configure it, once."""

import logging
import sys

import structlog

VERBOSE_LIBRARIES = ("great_expectations", "httpx", "py4j", "pyiceberg")  # logged at `warning` and above only


def configure_logging(service: str, *, json: bool = False, level: str = "info") -> None:
    """Write all log lines of this process, including those of libraries, to stderr, with the field `service`.

    Args:
        service: name of the process, such as `recorder` or `dispatcher-1`.
        json: one JSON object per line instead of key=value.
        level: minimum level.
    """
    shared_processors: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared_processors, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if not json:
        renderer = structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "service", "event"], drop_missing=True)

    def name_service(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        """Add the field `service`. A context variable would not do: threads that a library starts do not inherit it."""
        event["service"] = service
        return event

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared_processors,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, name_service, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in VERBOSE_LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
