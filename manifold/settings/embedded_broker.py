"""File and socket names shared by the embedded broker's configuration and the event tap. Pure."""

import hashlib
import os
import tempfile
from pathlib import Path

from manifold.settings import Settings

TAP_USERNAME = "sdv-tap"
# EMQX's defaults, also used for Mosquitto.
SESSION_MAX_S = 7200  # lifetime of an MQTT 3.1.1 session; in Mosquitto the same option limits the expiry of MQTT 5 sessions
MAX_INFLIGHT = 32  # unacknowledged messages that the broker sends to a vehicle
_SOCKET_PATH_MAX = 100  # bytes; the OS limit is 107


def folder(settings: Settings) -> Path:
    """Return the folder of Mosquitto's files."""
    return settings.home / "mosquitto"


def config_file(settings: Settings) -> Path:
    """Return the path of Mosquitto's configuration; it exists only if Manifold starts the broker itself."""
    return folder(settings) / "mosquitto.conf"


def inner_socket(settings: Settings) -> Path:
    """Return the socket for the tap's events and platform publishers; only this system user can open it."""
    return _socket(settings, "inner")


def outer_socket(settings: Settings) -> Path:
    """Return the socket for vehicles and services with TLS; only the tap, which checks certificates, can open it."""
    return _socket(settings, "outer")


def _socket(settings: Settings, name: str) -> Path:
    """Return the path of a socket. It is in the temporary folder if a path under the home would be too long."""
    path = folder(settings) / f"{name}.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH_MAX:
        return path
    return Path(tempfile.gettempdir()) / f"manifold-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.sock"
