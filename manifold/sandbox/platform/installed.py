"""Locates the servers' executables, which may be in system folders outside a user's PATH."""

import os
import shutil

from manifold.contracts.errors import Permanent

SYSTEM = ("/usr/sbin", "/usr/local/sbin")


def path_of(program: str, *, install: str, folders: tuple[str, ...] = SYSTEM) -> str:
    """Return a program's path, on the PATH or else in these folders.

    Raises:
        Permanent: it is not there; `install` names the package to install.
    """
    found = shutil.which(program) or shutil.which(program, path=os.pathsep.join(folders))
    if found is None:
        raise Permanent(f"{program} is not on the PATH; install {install}")
    return found
