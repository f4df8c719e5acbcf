"""The console's output: tables for people, JSON for programs, errors on stderr with a remedy and an exit code."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from manifold.console._table import printable as printable
from manifold.console._table import shown as shown
from manifold.console._table import table as table
from manifold.contracts.errors import ManifoldError
from manifold.contracts.names import is_vin
from manifold.settings import Settings, load_settings

P = ParamSpec("P")
R = TypeVar("R")

# Without markup and emoji, because names, paths and reasons from elsewhere may look like either.
out, err = (Console(stderr=stderr, soft_wrap=True, markup=False, emoji=False) for stderr in (False, True))
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FAILED, USAGE = 1, 2


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Print an error with its remedy, and exit."""
    err.print(Text.assemble(("error:", "bold red"), " ", printable(message, kept="\n")))
    raise typer.Exit(code)


def require_vin(vin: str) -> None:
    """Exit unless the text may be a VIN."""
    if not is_vin(vin):
        fail(f"VIN {vin!r} must be 1 to 64 printable ASCII characters without space, + # /", USAGE)


def settings_or_fail() -> Settings:
    """Load the settings; exit if they are invalid."""
    try:
        return load_settings()
    except ManifoldError as exc:
        fail(str(exc), USAGE)


def handle_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command: print errors that the user can fix as one line on stderr."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except ManifoldError as exc:
            fail(str(exc))
        except Exception as exc:
            from redis.exceptions import OutOfMemoryError, RedisError  # imported here, because the client is slow to import

            if not isinstance(exc, RedisError):
                raise
            if isinstance(exc, OutOfMemoryError):
                from manifold.runtime.redis import advice

                fail(advice(load_settings().redis, exc))
            if "WRONGTYPE" in str(exc):
                fail(f"a key in Redis holds what Manifold does not write there ({exc}); delete it, then run `manifold rebuild`")
            fail(f"Redis is unavailable ({exc}); is the platform up? See `manifold status`")

    return run


def print_json(value: object) -> None:
    """Write one JSON document to stdout."""
    sys.stdout.write(json.dumps(value, indent=2, default=_plain) + "\n")


@contextmanager
def working(what: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show a spinner within the block, unless `quiet`; yields a function that changes its text."""
    if quiet:
        yield lambda _: None
        return
    with err.status(what) as status:
        yield lambda words: status.update(words)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)
