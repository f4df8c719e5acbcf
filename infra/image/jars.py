"""`python jars.py REPOSITORY LIST FOLDER`: downloads the files in a list, whose lines have a SHA-256 and a path, and checks them.

If there is a file /run/secrets/ca, its certificates are trusted in addition to those of the system.
"""

import hashlib
import ssl
import sys
import urllib.request
from pathlib import Path

CA = Path("/run/secrets/ca")
MAX_TRIES = 3


def fetch(url: str, trust: ssl.SSLContext) -> bytes:
    """Download the file at `url`. After the last failed try, exit with status 1."""
    for tries_left in reversed(range(MAX_TRIES)):
        try:
            with urllib.request.urlopen(url, timeout=120, context=trust) as answer:  # noqa: S310  # the repository's URL
                content: bytes = answer.read()
            return content
        except OSError as exc:
            if not tries_left:
                sys.exit(f"{url}: {exc}")
    raise AssertionError


def main() -> None:
    """Download all files. Exit with status 1 at the first file with another hash than in the list."""
    repository = sys.argv[1].rstrip("/")
    list_file, folder = Path(sys.argv[2]), Path(sys.argv[3])
    trust = ssl.create_default_context()
    if CA.is_file() and CA.stat().st_size:
        trust.load_verify_locations(CA)
    folder.mkdir(parents=True)
    for line in list_file.read_text().splitlines():
        digest, path = line.split()
        content = fetch(f"{repository}/{path}", trust)
        actual_digest = hashlib.sha256(content).hexdigest()
        if actual_digest != digest:
            sys.exit(f"{path} has SHA-256 {actual_digest}, not {digest}; do not use this repository")
        (folder / Path(path).name).write_bytes(content)


if __name__ == "__main__":
    main()
