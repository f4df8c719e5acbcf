"""Where the programs of servers are. Folders of a system's own programs are often not on a user's PATH."""

import os
import shutil

from manifold.contracts.errors import Permanent

SYSTEM = ("/usr/sbin", "/usr/local/sbin")


def path_of(program: str, *, install: str, folders: tuple[str, ...] = SYSTEM) -> str:
    """The program's path, on the PATH or else in these folders.

    Raises:
        Permanent: it is not there; `install` is what to install then.
    """
    found = shutil.which(program) or shutil.which(program, path=os.pathsep.join(folders))
    if found is None:
        raise Permanent(f"{program} is not on the PATH; install {install}")
    return found
