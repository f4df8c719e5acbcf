"""The certificates that the sandbox's Redis has loaded, which it loads again on command only."""

from manifold.contracts.tls import INNER_CA, SERVER
from manifold.runtime import secret_files
from manifold.runtime.redis import connect
from manifold.runtime.renewal import written_at
from manifold.settings import Settings

ANSWER_S = 5.0  # timeout of Redis


def version(settings: Settings) -> tuple[int, ...]:
    """Return a version of the files that Redis loads; it changes when one of them is written.

    Raises:
        OSError: a file cannot be read.
    """
    return tuple(written_at(str(secret_files.folder(settings.home) / file)) for file in (SERVER, INNER_CA))


def reload(settings: Settings) -> None:
    """Make the sandbox's Redis reload its certificate and CA.

    Raises:
        redis.RedisError: it does not answer.
    """
    folder = secret_files.folder(settings.home)
    server = str(folder / SERVER)
    files = ("tls-cert-file", server, "tls-key-file", server, "tls-ca-cert-file", str(folder / INNER_CA))
    with connect(settings.redis, socket_connect_timeout=ANSWER_S, socket_timeout=ANSWER_S) as redis:
        redis.execute_command("CONFIG", "SET", *files)
