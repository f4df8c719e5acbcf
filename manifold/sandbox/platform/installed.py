"""Locates the servers' executables, which may be in system folders outside a user's PATH."""

import os
import shutil

from manifold.contracts.errors import Permanent

SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin")


def path_of(program: str, *, remedy: str, folders: tuple[str, ...] = SYSTEM_FOLDERS) -> str:
    """Return a program's path. The program is looked for on the PATH, then in `folders`.

    Raises:
        Permanent: the program is in none of these folders; the message ends with `remedy`.
    """
    path = shutil.which(program) or shutil.which(program, path=os.pathsep.join(folders))
    if path is None:
        raise Permanent(f"{program} is not on the PATH; {remedy}")
    return path
