"""Users of the sandbox's Redis with TLS: the services, with the same rights as in deployments, and an all-powerful operator."""

import runpy
from pathlib import Path

from manifold.contracts.tls import OF_REDIS, OPERATOR
from manifold.runtime import secret_files
from manifold.settings import Settings

PROGRAM = Path(__file__).parents[3] / "infra" / "redis" / "users.py"
OPERATORS = f"user {OPERATOR} on >{{}} ~* &* +@all"


def write(settings: Settings) -> Path:
    """Generate missing passwords, and write the ACL file that Redis reads at start; return its path.

    Raises:
        OSError: it cannot be written.
    """
    program = runpy.run_path(str(PROGRAM))
    services = sorted(program["rights"]())
    passwords = {name: secret_files.get_or_create(settings.home, OF_REDIS.format(name)) for name in (*services, OPERATOR)}
    lines: str = program["acl"]({name: passwords[name] for name in services})
    file = secret_files.folder(settings.home) / "redis-users.acl"
    secret_files.write(file, f"{lines}{OPERATORS.format(passwords[OPERATOR])}\n".encode())
    return file
