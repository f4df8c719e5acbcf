"""The users of the sandbox's Redis with TLS: those of environments, with the same rights, and the operator, with all rights."""

import runpy
from pathlib import Path

from manifold.contracts.tls import OF_REDIS, OPERATOR
from manifold.runtime import secret_files
from manifold.settings import Settings

PROGRAM = Path(__file__).parents[3] / "infra" / "redis" / "users.py"
OPERATORS = f"user {OPERATOR} on >{{}} ~* &* +@all"


def write(settings: Settings) -> Path:
    """Make up the passwords that are missing, and write the file of users that Redis reads at its start; its path.

    Raises:
        OSError: it cannot be written.
    """
    program = runpy.run_path(str(PROGRAM))
    services = sorted(program["rights"]())
    passwords = {name: secret_files.made_up(settings.home, OF_REDIS.format(name)) for name in (*services, OPERATOR)}
    lines: str = program["acl"]({name: passwords[name] for name in services})
    file = secret_files.folder(settings.home) / "redis-users.acl"
    secret_files.write(file, f"{lines}{OPERATORS.format(passwords[OPERATOR])}\n".encode())
    return file
