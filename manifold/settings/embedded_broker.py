"""The file and socket names that the embedded broker's configuration and the tap share. Pure."""

import hashlib
import os
import tempfile
from pathlib import Path

from manifold.settings import Settings

TAP_USERNAME = "sdv-tap"
# EMQX's defaults, given to Mosquitto too.
SESSION_MAX_S = 7200  # how long a kept session lives before MQTT 5; Mosquitto has one setting, so a client on MQTT 5 gets no more
MAX_INFLIGHT = 32  # messages that the broker sends to a vehicle before it acknowledges one
_SOCKET_PATH_MAX = 100  # bytes; the system's limit is 107


def folder(settings: Settings) -> Path:
    """The folder of Mosquitto's files."""
    return settings.home / "mosquitto"


def config_file(settings: Settings) -> Path:
    """Mosquitto's configuration. It is there only where Manifold starts the broker itself."""
    return folder(settings) / "mosquitto.conf"


def inner_socket(settings: Settings) -> Path:
    """The listener for the tap's events and for platform publishers; only this system user can open it."""
    return _socket(settings, "inner")


def outer_socket(settings: Settings) -> Path:
    """The listener for vehicles and services where the tap alone may come, because it asks for certificates."""
    return _socket(settings, "outer")


def _socket(settings: Settings, name: str) -> Path:
    path = folder(settings) / f"{name}.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH_MAX:
        return path
    return Path(tempfile.gettempdir()) / f"manifold-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.sock"
