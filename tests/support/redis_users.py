"""The Redis users of an environment in a test Redis: services log in as themselves, and tests may do everything."""

import runpy
import secrets
from pathlib import Path
from typing import Any

from redis import Redis

from tests.support.servers import ROOT

PROGRAM = runpy.run_path(str(ROOT / "infra" / "redis" / "users.py"))
SERVICES = ("recorder", "dispatcher", "campaigner", "signals", "api", "jobs")


class RedisUsers:
    """Generated passwords and the users file. `exact`: as in environments, with the additional user `tests`."""

    def __init__(self, folder: Path, *, exact: bool = False) -> None:
        self._passwords = {service: secrets.token_hex(8) for service in SERVICES}
        of_environments = PROGRAM["acl"](self._passwords)
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "users.acl"
        if exact:
            self._passwords["tests"] = secrets.token_hex(8)
            self.file.write_text(f"{of_environments}user tests on >{self._passwords['tests']} ~* &* +@all\n")
        else:
            self.file.write_text(of_environments.replace(PROGRAM["DEFAULT_USER"], "user default on nopass ~* &* +@all"))

    def url(self, service: str, port: int) -> str:
        """The Redis URL of this service."""
        return f"redis://{service}:{self._passwords[service]}@127.0.0.1:{port}/0"

    def add_to(self, redis: Redis) -> None:
        """Add them to a running node."""
        for line in self.file.read_text().splitlines():
            redis.execute_command("ACL", "SETUSER", *line.split()[1:])

    def connect(self, service: str, port: int) -> Redis:
        """A connection with the rights of this service."""
        return Redis.from_url(self.url(service, port))


def refused(redis: Redis) -> list[str]:
    """The commands and keys that Redis has refused to its users since its start, by user."""
    entries: Any = redis.acl_log()
    return [f"{entry['username']}: {entry['reason']} {entry['object']} ({entry['context']})" for entry in entries]
