"""Building blocks of settings: types with their checks, and a field with its meaning as printed by `manifold settings`."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from manifold.contracts.seq import MAX_NODE

MAX_DAYS = 36_500  # a century; dates computed with many more days would be beyond the range of `datetime`

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=MAX_DAYS * 86_400)]
SecondsOrNone = Annotated[float, Field(ge=0, le=MAX_DAYS * 86_400)]
Days = Annotated[float, Field(gt=0, le=MAX_DAYS)]
DaysOrNone = Annotated[float, Field(ge=0, le=MAX_DAYS)]
Positive = Annotated[int, Field(gt=0)]
NodeNumber = Annotated[int, Field(ge=0, le=MAX_NODE)]


def setting(default: Any, meaning: str) -> Any:
    """Return a settings field with this default; `meaning` is its description for users."""
    return Field(default=default, description=meaning)


def _without_line_break(value: object) -> object:
    return value.rstrip("\r\n") if isinstance(value, str) else value


def _absolute(path: Path) -> Path:
    """Return the absolute path of a folder. A `~` at its beginning stands for a user's home."""
    try:
        return path.expanduser().absolute()
    except RuntimeError:  # there is no such user
        raise ValueError("must be a folder; nobody has the home that its ~ names") from None


Secret = Annotated[SecretStr, BeforeValidator(_without_line_break)]  # without the line break at the end of a file
Folder = Annotated[Path, AfterValidator(_absolute)]


def of_form(form: str, rule: str) -> AfterValidator:
    """Return a check that a secret matches the regular expression `form`; `rule` is the error message, without the secret."""

    def check(secret: SecretStr) -> SecretStr:
        if not re.fullmatch(form, secret.get_secret_value()):
            raise ValueError(rule)
        return secret

    return AfterValidator(check)


_PATH_SCHEMES = ("file", "unix")  # schemes whose URLs have a path, and no host


def url_check(*schemes: str) -> Callable[[Any], Any]:
    """Return a check that a text or secret is empty, or a URL of one of these schemes; its port, if any, must be valid.

    The URL needs a host, or a path if its scheme is in `_PATH_SCHEMES`. The error message does not show the URL, because the URL
    may contain a password.
    """

    def check(value: str | SecretStr) -> str | SecretStr:
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if not _is_empty_or_url(text, schemes):
            begins = ", ".join(f"{scheme}://" for scheme in schemes)
            raise ValueError(
                f"must be a whole URL that begins with one of {begins}; escape / ? # @ in a password as %2F %3F %23 %40"
            )
        return value

    return check


def _is_empty_or_url(text: str, schemes: tuple[str, ...]) -> bool:
    if not text:
        return True
    try:
        parts = urlsplit(text)
        if parts.scheme in _PATH_SCHEMES:
            return parts.scheme in schemes and bool(parts.path)
        return parts.scheme in schemes and bool(parts.netloc) and parts.port != 0
    except ValueError:  # the URL cannot be parsed, or its port is out of range
        return False


RedisUrl = Annotated[Secret, AfterValidator(url_check("redis", "rediss", "redis+cluster", "rediss+cluster", "unix"))]
AmqpUrl = Annotated[Secret, AfterValidator(url_check("amqp", "amqps"))]
MqttUrl = Annotated[str, AfterValidator(url_check("mqtt", "mqtts", "tcp", "ssl"))]
ArchiveUrl = Annotated[str, AfterValidator(url_check("file", "s3"))]
