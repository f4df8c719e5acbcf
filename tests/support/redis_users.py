"""The users that Redis has in an environment, for a Redis of tests: services come as who they are, and tests may do all."""

import runpy
import secrets
from pathlib import Path
from typing import Any

from redis import Redis

from tests.support.servers import ROOT

PROGRAM = runpy.run_path(str(ROOT / "infra" / "redis" / "users.py"))
SERVICES = ("recorder", "dispatcher", "signals", "api", "jobs")


class RedisUsers:
    """Passwords made up, and the file of users. `exact`: as it is in environments, and tests come as the user `tests`."""

    def __init__(self, folder: Path, *, exact: bool = False) -> None:
        self._passwords = {service: secrets.token_hex(8) for service in SERVICES}
        of_environments = PROGRAM["acl"](self._passwords)
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "users.acl"
        if exact:
            self._passwords["tests"] = secrets.token_hex(8)
            self.file.write_text(f"{of_environments}user tests on >{self._passwords['tests']} ~* &* +@all\n")
        else:
            self.file.write_text(of_environments.replace(PROGRAM["NOBODY"], "user default on nopass ~* &* +@all"))

    def url(self, service: str, port: int) -> str:
        """Where this service finds Redis."""
        return f"redis://{service}:{self._passwords[service]}@127.0.0.1:{port}/0"

    def add_to(self, redis: Redis) -> None:
        """Make them users of a node that runs."""
        for line in self.file.read_text().splitlines():
            redis.execute_command("ACL", "SETUSER", *line.split()[1:])

    def connect(self, service: str, port: int) -> Redis:
        """A connection with the rights of this service."""
        return Redis.from_url(self.url(service, port))


def refused(redis: Redis) -> list[str]:
    """What Redis has refused to its users since it was started: who, and which command or key."""
    entries: Any = redis.acl_log()
    return [f"{entry['username']}: {entry['reason']} {entry['object']} ({entry['context']})" for entry in entries]
