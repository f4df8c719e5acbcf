"""Record of the certificates signed by a home's CAs, with their expiry, for revocation. Contains no keys."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from manifold.runtime import secret_files

FILE = "issued.jsonl"  # in the secrets folder, one line per certificate, oldest first
RETENTION = timedelta(days=30)  # after expiry


@dataclass(frozen=True, slots=True)
class Issued:
    """One certificate: common name, serial number, CA, and expiry (UTC)."""

    name: str
    serial: int
    issuer: str
    ends_at: datetime


def note(home: Path, pem: bytes) -> None:
    """Record the first certificate of `pem`.

    Raises:
        OSError: the record cannot be written.
    """
    found = x509.load_pem_x509_certificate(pem)
    line = {
        "name": _common_name(found.subject),
        "serial": f"{found.serial_number:x}",
        "issuer": _common_name(found.issuer),
        "ends_at": found.not_valid_after_utc.isoformat(),
    }
    with _locked(home) as file, os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb", buffering=0) as out:
        out.write((b"\n" if _is_torn(file) else b"") + json.dumps(line).encode() + b"\n")


def forget_ended(home: Path, *, now: datetime | None = None) -> int:
    """Remove certificates that expired more than `RETENTION` before `now`; return how many.

    Raises:
        OSError: the record cannot be written.
    """
    since = (now or datetime.now(UTC)) - RETENTION
    with _locked(home) as file:
        rows = _lines(file)
        kept = [line for line in rows if _row(line).ends_at > since]
        if len(kept) < len(rows):
            draft = file.with_name(f".{FILE}.{os.getpid()}")
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
                out.writelines(f"{json.dumps(line)}\n" for line in kept)
                out.flush()
                os.fsync(out.fileno())
            draft.replace(file)
    return len(rows) - len(kept)


def of_home(home: Path, *, now: datetime | None = None) -> list[Issued]:
    """Return a home's certificates that are valid at `now`, oldest first."""
    since = now or datetime.now(UTC)
    return [row for row in all_of(home) if row.ends_at > since]


def all_of(home: Path) -> list[Issued]:
    """Return all recorded certificates, oldest first, including recently expired ones."""
    return [_row(line) for line in _lines(secret_files.folder(home) / FILE)]


@contextmanager
def _locked(home: Path) -> Iterator[Path]:
    """Lock the record and yield its path. The lock is on the folder, because the file may be replaced."""
    folder = secret_files.folder(home)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder / FILE
    finally:
        os.close(lock)


def _is_torn(file: Path) -> bool:
    """Whether the last line is incomplete, because its writer was killed."""
    return file.exists() and file.read_bytes()[-1:] not in (b"", b"\n")


def _lines(file: Path) -> list[dict[str, str]]:
    """Return the complete lines."""
    found = []
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # incomplete: its certificate was never issued
    return found


def _row(line: dict[str, str]) -> Issued:
    return Issued(line["name"], int(line["serial"], 16), line["issuer"], datetime.fromisoformat(line["ends_at"]))


def _common_name(name: x509.Name) -> str:
    return str(name.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
