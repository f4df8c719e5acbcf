"""Fetches the files of a list, and accepts no others: `python jars.py REPOSITORY LIST FOLDER`; a line is SHA-256 and path.

The file /run/secrets/ca, where there is one, holds the certificates to trust besides those of the system.
"""

import hashlib
import ssl
import sys
import urllib.request
from pathlib import Path

CA = Path("/run/secrets/ca")
TRIES = 3


def fetch(url: str, trust: ssl.SSLContext) -> bytes:
    """The bytes at `url`; a connection that breaks is tried again."""
    for left in reversed(range(TRIES)):
        try:
            with urllib.request.urlopen(url, timeout=120, context=trust) as answer:  # noqa: S310  # of the list
                content: bytes = answer.read()
            return content
        except OSError as exc:
            if not left:
                sys.exit(f"{url}: {exc}")
    raise AssertionError


def main() -> None:
    """Fetch all of them; end with status 1 if the hash of one is wrong."""
    repository, listed, folder = sys.argv[1].rstrip("/"), Path(sys.argv[2]), Path(sys.argv[3])
    trust = ssl.create_default_context()
    if CA.is_file() and CA.stat().st_size:
        trust.load_verify_locations(CA)
    folder.mkdir(parents=True)
    for line in listed.read_text().splitlines():
        digest, path = line.split()
        content = fetch(f"{repository}/{path}", trust)
        if (seen := hashlib.sha256(content).hexdigest()) != digest:
            sys.exit(f"{path} has SHA-256 {seen}, not {digest}; do not use this repository")
        (folder / Path(path).name).write_bytes(content)


if __name__ == "__main__":
    main()
