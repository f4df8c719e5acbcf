"""Reloads the certificates of the sandbox's Redis, which notices changed files only when it is told."""

from manifold.contracts.tls import INNER_CA, SERVER
from manifold.runtime import secret_files
from manifold.runtime.redis import connect
from manifold.runtime.renewal import written_at
from manifold.settings import Settings

TIMEOUT_S = 5.0  # for Redis to accept a connection, and to answer a command


def version(settings: Settings) -> tuple[int, ...]:
    """Return the modification times of the files that Redis loads, as a version that changes with any of them.

    Raises:
        OSError: a file cannot be read.
    """
    return tuple(written_at(str(secret_files.folder(settings.home) / file)) for file in (SERVER, INNER_CA))


def reload(settings: Settings) -> None:
    """Make the sandbox's Redis reload its certificate and CA.

    Raises:
        redis.RedisError: Redis does not answer.
    """
    folder = secret_files.folder(settings.home)
    certificate_and_key, ca = str(folder / SERVER), str(folder / INNER_CA)
    options = ("tls-cert-file", certificate_and_key, "tls-key-file", certificate_and_key, "tls-ca-cert-file", ca)
    with connect(settings.redis, socket_connect_timeout=TIMEOUT_S, socket_timeout=TIMEOUT_S) as redis:
        redis.execute_command("CONFIG", "SET", *options)
