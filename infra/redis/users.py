"""`users.py < lines "user password"`: the users of Redis for `aclfile`, each with the rights of rights.json beside this.

Passwords come through standard input, so that none is in a command line. A user who has no rights there is an error, and so is
one there who has no password. The user `probe`, with any password, may ask whether Redis is there, and nothing else.
"""

import json
import sys
from pathlib import Path
from typing import Any

RIGHTS = Path(__file__).with_name("rights.json")
# Nobody can be `default`, and it may do all: as that user Redis plays the transactions of its file at its start, scripts among
# them, and drops without a word what that user may not (redis/redis#14541).
NOBODY = "user default off resetpass ~* &* +@all"
PROBE = "user probe on nopass resetkeys resetchannels -@all +ping"
# What every service asks: its connection, the time, how Redis is and, of a cluster, where its keys are. Scripts run with the
# rights of who calls them. What is dangerous to all (FLUSHALL, KEYS, CONFIG, SHUTDOWN, MONITOR, ACL) is nobody's.
COMMON = (
    "+@connection +@transaction +eval +evalsha +script|load +time +wait +command +cluster|slots +cluster|shards +cluster|nodes"
)
NEVER = "-@dangerous -@admin -function +info"
# Names of keys, which no pattern hides: they have the names of vehicles. For who walks through the queues, and nobody else.
WALKS = ("scan", "randomkey", "dbsize")


def rights() -> dict[str, dict[str, Any]]:
    """What each user may."""
    found: dict[str, dict[str, Any]] = json.loads(RIGHTS.read_text())
    return found


def acl(passwords: dict[str, str]) -> str:
    """The lines of the file."""
    of_users = rights()
    if of_users.keys() != passwords.keys():
        raise SystemExit(f"users with rights are {sorted(of_users)}, with passwords {sorted(passwords)}")
    lines = [NOBODY, PROBE]
    for user, password in passwords.items():
        known = [*(f"~{name}" for name in of_users[user]["keys"]), *(f"%R~{name}" for name in of_users[user].get("reads", ()))]
        keys = " ".join(known)  # those of `reads` only by commands of their own: a script counts as one that writes
        may = "+@read +@write" if of_users[user]["writes"] else "+@read"
        sees = " ".join(f"{'+' if of_users[user]['walks'] else '-'}{command}" for command in WALKS)
        lines.append(f"user {user} on >{password} resetchannels {keys} -@all {may} {COMMON} {NEVER} {sees}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(acl(dict(line.split() for line in sys.stdin)))
