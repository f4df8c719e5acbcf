"""Users of the sandbox's Redis with TLS: the services, with their rights in deployments, and an operator with all rights."""

import runpy
from pathlib import Path

from manifold.contracts.tls import OF_REDIS, OPERATOR
from manifold.runtime import secret_files
from manifold.settings import Settings

DEPLOYMENT_SCRIPT = Path(__file__).parents[3] / "infra" / "redis" / "users.py"
OPERATOR_RULE = f"user {OPERATOR} on >{{}} ~* &* +@all"  # {} is the password


def write(settings: Settings) -> Path:
    """Generate missing passwords, and write the ACL file that Redis reads at start; return its path.

    Raises:
        OSError: the ACL file cannot be written.
    """
    script = runpy.run_path(str(DEPLOYMENT_SCRIPT))
    services = sorted(script["rights"]())
    passwords = {name: secret_files.get_or_create(settings.home, OF_REDIS.format(name)) for name in services}
    operator_password = secret_files.get_or_create(settings.home, OF_REDIS.format(OPERATOR))
    service_rules: str = script["acl"](passwords)
    file = secret_files.folder(settings.home) / "redis-users.acl"
    secret_files.write(file, f"{service_rules}{OPERATOR_RULE.format(operator_password)}\n".encode())
    return file
