"""Logging: one line per event, as key=value for people or JSON for programs. Only entry points configure it, once."""

import logging
import sys

import structlog

VERBOSE_LIBRARIES = ("great_expectations", "httpx", "py4j", "pyiceberg")  # logged at `warning` and above only


def configure_logging(service: str, *, json: bool = False, level: str = "info") -> None:
    """Write all log lines of this process, those of libraries too, to stderr, with the field `service`.

    structlog writes our own lines itself; only those of libraries pass through the module `logging`.

    Args:
        service: name of the process, such as `recorder` or `dispatcher-1`.
        json: one JSON object per line instead of key=value.
        level: minimum level.
    """

    def name_service(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        """Add the field `service`. A context variable would not do: threads that a library starts do not inherit it."""
        event["service"] = service
        return event

    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        name_service,
    ]
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if not json:
        renderer = structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "service", "event"], drop_missing=True)
    structlog.configure(
        processors=[*processors, renderer],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    of_libraries = logging.StreamHandler(sys.stderr)
    without_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    of_libraries.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=processors, processors=[without_meta, renderer])
    )
    root = logging.getLogger()
    root.handlers = [of_libraries]
    root.setLevel(level.upper())
    for name in VERBOSE_LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
