"""Secrets stored in files of their own, in the sandbox's home."""

from pathlib import Path

from manifold.contracts.errors import Permanent


def read_secret(file: Path) -> str:
    """Return the secret in this file; empty if there is no file.

    Raises:
        Permanent: the file cannot be read.
    """
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""
    except OSError as exc:
        raise Permanent(f"the secret in {file} cannot be read ({exc.strerror}); run as the user whose home it is") from exc
