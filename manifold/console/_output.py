"""The console's output: tables for people, JSON for programs, errors on stderr with a remedy and an exit code."""

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.text import Text

# Imported under the same name, so that commands can import them from here.
from manifold.console._table import printable as printable
from manifold.console._table import shown as shown
from manifold.console._table import table as table
from manifold.contracts.errors import ManifoldError
from manifold.contracts.names import is_vin
from manifold.settings import Settings, load_settings

if TYPE_CHECKING:
    from redis.exceptions import RedisError

P = ParamSpec("P")
R = TypeVar("R")

# Without markup and emoji, because names, paths and reasons from elsewhere may look like either.
out = Console(soft_wrap=True, markup=False, emoji=False)
err = Console(stderr=True, soft_wrap=True, markup=False, emoji=False)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FAILED, USAGE = 1, 2  # exit statuses: the command failed; its arguments or the settings are invalid


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Print an error, whose message should end with the remedy, and exit with this status."""
    err.print(Text.assemble(("error:", "bold red"), " ", printable(message, kept="\n")))
    raise typer.Exit(code)


def command_line(*words: str, **options: object) -> str:
    """Format a `manifold` command so that it can be pasted into a shell.

    `options` has values by name. A list is a repeated option; an option whose value is None, empty or an empty list is omitted.
    """
    parts = ["manifold", *words]
    for name, value in options.items():
        for item in value if isinstance(value, list) else [value]:
            if item not in (None, ""):
                parts += [f"--{name}", str(item)]
    return shlex.join(parts)


def require_vin(vin: str) -> None:
    """Exit with an error unless the text has the form of a VIN."""
    if not is_vin(vin):
        fail(f"VIN {vin!r} must be 1 to 64 printable ASCII characters without space, + # /", USAGE)


def settings_or_fail() -> Settings:
    """Load the settings; exit with an error if they are invalid."""
    try:
        return load_settings()
    except ManifoldError as exc:
        fail(str(exc), USAGE)


def handle_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command: print a ManifoldError or an error of Redis as one line on stderr, and exit with status 1.

    Other exceptions propagate.
    """

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except ManifoldError as exc:
            fail(str(exc))
        except Exception as exc:
            from redis.exceptions import RedisError  # imported here, because the client is slow to import

            if not isinstance(exc, RedisError):
                raise
            fail(_explain_redis_error(exc))

    return run


def _explain_redis_error(exc: "RedisError") -> str:
    """A message that has the error, and what the user can do about it."""
    from redis.exceptions import OutOfMemoryError

    if isinstance(exc, OutOfMemoryError):
        from manifold.runtime.redis import advice

        return advice(load_settings().redis, exc)
    if "WRONGTYPE" in str(exc):
        return f"a key in Redis has a type that Manifold does not use there ({exc}); delete it, then run `manifold rebuild`"
    return f"Redis is unavailable ({exc}); is the platform up? See `manifold status`"


def print_json(value: object) -> None:
    """Write one JSON document to stdout. Times become ISO 8601; other types that JSON lacks become text."""
    sys.stdout.write(json.dumps(value, indent=2, default=_encode) + "\n")


@contextmanager
def spinner(text: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show a spinner with this text within the block, unless `quiet`; yield a function that changes the text."""
    if quiet:
        yield lambda _: None
        return
    with err.status(text) as status:
        yield lambda new_text: status.update(new_text)


def _encode(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
