"""`users.py < lines "user password"`: what RabbitMQ is to import, with those users, and rights of permissions.json beside this.

Passwords come through standard input, so that none is in a command line. A user who has no rights there is an error, and so is
one there who has no password.
"""

import json
import sys
from pathlib import Path

PERMISSIONS = Path(__file__).with_name("permissions.json")


def definitions(passwords: dict[str, str]) -> dict[str, object]:
    """Users without any tag, the virtual host, and the rights of each."""
    rights = json.loads(PERMISSIONS.read_text())
    known = {of["user"] for of in rights["permissions"]}
    if known != passwords.keys():
        raise SystemExit(f"users with rights are {sorted(known)}, with passwords {sorted(passwords)}")
    users = [{"name": name, "password": password, "tags": []} for name, password in passwords.items()]
    return {"users": users, "vhosts": [{"name": "/"}], **rights}


if __name__ == "__main__":
    json.dump(definitions(dict(line.split() for line in sys.stdin)), sys.stdout)
