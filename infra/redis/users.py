"""`users.py < <lines "user password">`: prints Redis's ACL file (`aclfile`), with the rights in rights.json beside this file.

Passwords come from standard input, so that none is in a command line. The users with passwords must be exactly the users with
rights. The user `probe`, with any password, may only send PING, for health checks.
"""

import json
import sys
from pathlib import Path
from typing import Any

RIGHTS = Path(__file__).with_name("rights.json")
# Nobody can log in as `default`, but this user must have all rights: when Redis starts, it replays the transactions and scripts
# of its append-only file as `default`, and silently drops commands that `default` may not use (redis/redis#14541).
DEFAULT_USER = "user default off resetpass ~* &* +@all"
PROBE = "user probe on nopass resetkeys resetchannels -@all +ping"
# Commands that every service uses, in addition to those that read and write keys. A script runs with the rights of its caller. No
# service may use the dangerous commands, such as FLUSHALL, KEYS, CONFIG, SHUTDOWN, MONITOR and ACL.
COMMON = (
    "+@connection +@transaction +eval +evalsha +script|load +time +wait +command +cluster|slots +cluster|shards +cluster|nodes"
)
NEVER = "-@dangerous -@admin -function +info"
# Commands that reveal the names of all keys, whatever the patterns of the user. Keys contain the names of vehicles, so only
# services that scan the queues may use these commands (`walks` in rights.json).
SCAN_COMMANDS = ("scan", "randomkey", "dbsize")


def rights() -> dict[str, dict[str, Any]]:
    """Return the rights in rights.json, by user."""
    rights_by_user: dict[str, dict[str, Any]] = json.loads(RIGHTS.read_text())
    return rights_by_user


def acl(passwords: dict[str, str]) -> str:
    """Return the text of the ACL file."""
    rights_by_user = rights()
    if rights_by_user.keys() != passwords.keys():
        raise SystemExit(f"users with rights are {sorted(rights_by_user)}, with passwords {sorted(passwords)}")
    lines = [DEFAULT_USER, PROBE]
    for user, password in passwords.items():
        user_rights = rights_by_user[user]
        patterns = [f"~{pattern}" for pattern in user_rights["keys"]]
        # Read-only keys cannot be passed to a script, which Redis treats as a command that writes.
        patterns += [f"%R~{pattern}" for pattern in user_rights.get("reads", ())]
        keys = " ".join(patterns)
        key_commands = "+@read +@write" if user_rights["writes"] else "+@read"
        sign = "+" if user_rights["walks"] else "-"
        scan_commands = " ".join(f"{sign}{command}" for command in SCAN_COMMANDS)
        lines.append(f"user {user} on >{password} resetchannels {keys} -@all {key_commands} {COMMON} {NEVER} {scan_commands}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(acl(dict(line.split() for line in sys.stdin)))
