"""A secret in a file of its own, in the home of whoever runs the sandbox."""

from pathlib import Path

from manifold.contracts.errors import Permanent


def read_secret(file: Path) -> str:
    """The secret in this file; empty where there is no such file.

    Raises:
        Permanent: it cannot be read.
    """
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""
    except OSError as exc:
        raise Permanent(f"the secret in {file} cannot be read ({exc.strerror}); run as the user whose home it is") from exc
