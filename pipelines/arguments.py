"""Options of stages. Those that several stages share are functions that add them to a parser; `option` and `flag` make others."""

import argparse
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from manifold.archive.segment import Interval, recent
from manifold.contracts.errors import Permanent
from manifold.settings import Settings

Declarer = Callable[[argparse.ArgumentParser], object]


def option(name: str, summary: str, **argument: Any) -> Declarer:
    """Return a declarer of one option, with this help text and the keyword arguments of `add_argument`."""
    return lambda parser: parser.add_argument(name, help=summary, **argument)


def flag(name: str, summary: str) -> Declarer:
    """Return a declarer of an option without a value."""
    return option(name, summary, action="store_true")


def add_run_id(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Add `--run-id`, which Airflow passes to every task."""
    parser.add_argument("--run-id", required=required, help="the run; stages of one run have it in common")


def require_run_id(parser: argparse.ArgumentParser) -> None:
    """Add `--run-id` and require it, for stages that work on an existing run."""
    add_run_id(parser, required=True)


def add_no_flush(parser: argparse.ArgumentParser) -> None:
    """Add `--no-flush`, for stages that read the recorder's segments."""
    parser.add_argument("--no-flush", action="store_true", help="leave the recorder's open segments open")


def add_interval(parser: argparse.ArgumentParser) -> None:
    """Add the options that select an interval of the archive. `interval_of` evaluates them."""
    parser.add_argument("--from", dest="start", type=_instant, help="segments that began at or after this instant (ISO 8601)")
    parser.add_argument("--to", dest="end", type=_instant, help="and before this one; without both: everything new")
    parser.add_argument("--recent", action="store_true", help="everything new of the last ingest_window_days")


def add_days(parser: argparse.ArgumentParser) -> None:
    """Add the options that select days of the lake. They are parsed as `start` and `end`; either may be None."""
    parser.add_argument("--from", dest="start", type=_instant, help="days that end after this instant (ISO 8601)")
    parser.add_argument("--to", dest="end", type=_instant, help="and that begin before this one; without both: all days")


def interval_of(settings: Settings, options: argparse.Namespace) -> Interval | None:
    """Return the requested interval of the archive; None means the whole archive.

    Raises:
        Permanent: options contradict each other, or the interval is empty.
    """
    if options.recent:
        if options.start or options.end:
            raise Permanent("--recent says how far back a run looks; leave it out where --from and --to do")
        return recent(settings, datetime.now(UTC))
    if options.start is None and options.end is None:
        return None
    if options.start is None or options.end is None:
        raise Permanent("--from and --to belong together; leave both out for everything new")
    try:
        return Interval(options.start, options.end)
    except ValueError as exc:
        raise Permanent(str(exc)) from exc


def _instant(text: str) -> datetime:
    """Parse an ISO 8601 instant. One without a time zone is in UTC."""
    try:
        instant = datetime.fromisoformat(text.upper())
        return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is not an instant; write ISO 8601, such as 2026-10-25T00:00:00Z") from exc
