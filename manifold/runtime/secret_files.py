"""Secrets that the sandbox generates at its first start, each in a file of the home's secrets folder, for its user only."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from manifold.contracts.tls import SECRETS
from manifold.settings.secret_file import read_secret

FOLDER = SECRETS
HMAC, AMQP_PASSWORD, KEYS = "hmac", "amqp_password", "signals_keys"  # file names
OF_AMQP = "amqp_{}"  # file name of a RabbitMQ user's password
API_TOKENS = "api_tokens"  # file name; it has one line with the digest of each of the API's named tokens
_BYTES = 32


def folder(home: Path) -> Path:
    """Return the secrets folder of a home."""
    return home / FOLDER


def read(home: Path, name: str) -> str:
    """Return the secret; empty if it was never generated.

    Raises:
        Permanent: the file cannot be read.
    """
    return read_secret(folder(home) / name)


def get_or_create(home: Path, name: str, make: Callable[[], str] = lambda: secrets.token_hex(_BYTES)) -> str:
    """Return the secret. If there is none, generate it with `make` and store it; concurrent processes get the same secret."""
    if existing := read(home, name):
        return existing
    secrets_folder = folder(home)
    secrets_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    secrets_folder.chmod(0o700)
    draft = secrets_folder / f".{name}.{os.getpid()}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(f"{make()}\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, secrets_folder / name)  # readers never see a partial file; fails if another process was first
    except FileExistsError:  # the other process's secret is returned below
        pass
    finally:
        draft.unlink()
    return read(home, name)


def remove_stale_drafts(home: Path) -> None:
    """Remove drafts of processes that were killed while writing a secret.

    Raises:
        OSError: a draft cannot be removed.
    """
    for draft in folder(home).glob(".*.*"):
        pid = draft.name.rpartition(".")[2]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            draft.unlink(missing_ok=True)


def write(file: Path, content: bytes) -> None:
    """Write a file atomically, readable by this user only."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(file)
