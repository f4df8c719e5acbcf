"""`users.py < <lines "user password">`: prints RabbitMQ's definitions, with the rights in permissions.json beside this file.

Passwords come from standard input, so that none is in a command line. The users with passwords must be exactly the users with
rights.
"""

import json
import sys
from pathlib import Path

PERMISSIONS = Path(__file__).with_name("permissions.json")


def definitions(passwords: dict[str, str]) -> dict[str, object]:
    """Return the definitions for RabbitMQ to import: users without tags, the virtual host, and the users' rights."""
    rights = json.loads(PERMISSIONS.read_text())
    users_with_rights = {permission["user"] for permission in rights["permissions"]}
    if users_with_rights != passwords.keys():
        raise SystemExit(f"users with rights are {sorted(users_with_rights)}, with passwords {sorted(passwords)}")
    users = [{"name": name, "password": password, "tags": []} for name, password in passwords.items()]
    return {"users": users, "vhosts": [{"name": "/"}], **rights}


if __name__ == "__main__":
    json.dump(definitions(dict(line.split() for line in sys.stdin)), sys.stdout)
