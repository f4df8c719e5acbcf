"""The schemes of the URLs that settings hold: a wrong one is named when settings are read, and not when it is first used."""

from collections.abc import Mapping
from urllib.parse import urlsplit

_REDIS = ("redis", "rediss", "redis+cluster", "rediss+cluster", "unix")
_AMQP = ("amqp", "amqps")
SCHEMES: Mapping[str, tuple[str, ...]] = {
    "redis_url": _REDIS,
    "signals_redis_url": _REDIS,
    "mqtt_url": ("mqtt", "mqtts", "tcp", "ssl"),
    "signals_amqp_url": _AMQP,
    "signals_operator_url": _AMQP,
    "archive_url": ("file", "s3"),
}
_PATHS = ("file", "unix")  # what has a path and no host


def check_url(text: str, schemes: tuple[str, ...]) -> None:
    """Check that `text` is empty or a URL of one of these schemes, with a host and no port that there is not.

    Raises:
        ValueError: it is none. The message shows nothing of it, because it may hold a password.
    """
    if not text:
        return
    try:
        parts = urlsplit(text)
        in_order = parts.scheme in schemes and bool(parts.path if parts.scheme in _PATHS else parts.netloc)
        in_order = in_order and (parts.scheme in _PATHS or parts.port != 0)  # asked for, a port out of range is a ValueError
    except ValueError:
        in_order = False
    if not in_order:
        begins = ", ".join(f"{scheme}://" for scheme in schemes)
        raise ValueError(f"must be a whole URL that begins with one of {begins}; escape / ? # @ in a password as %2F %3F %23 %40")
