"""The secrets that the sandbox generates at its first start: one file each in a folder of the home, for its user alone."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from manifold.contracts.tls import SECRETS
from manifold.settings.secret_file import read_secret

FOLDER = SECRETS
HMAC, AMQP_PASSWORD, KEYS = "hmac", "amqp_password", "signals_keys"  # names of files
OF_AMQP = "amqp_{}"  # the password of one of RabbitMQ's users, by its name
_BYTES = 32


def folder(home: Path) -> Path:
    """The folder of secrets of a home."""
    return home / FOLDER


def read(home: Path, name: str) -> str:
    """The secret of this name; empty where none was made up.

    Raises:
        Permanent: it cannot be read.
    """
    return read_secret(folder(home) / name)


def made_up(home: Path, name: str, make: Callable[[], str] = lambda: secrets.token_hex(_BYTES)) -> str:
    """The secret of this name, made up now where there is none."""
    if found := read(home, name):
        return found
    place = folder(home)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.chmod(0o700)
    draft = place / f".{name}.{os.getpid()}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(f"{make()}\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, place / name)  # whoever is first has made it up, and nobody ever reads half of one
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return read(home, name)


def sweep(home: Path) -> None:
    """Remove drafts of processes that were killed before a secret was whole.

    Raises:
        OSError: one cannot be removed.
    """
    for draft in folder(home).glob(".*.*"):
        pid = draft.name.rpartition(".")[2]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            draft.unlink(missing_ok=True)


def write(file: Path, content: bytes) -> None:
    """A file for this user alone, whole or not at all: somebody may be reading it."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(file)
