"""Registry of the certificates that a home's CAs have signed, for revocation. It contains no keys."""

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
RETENTION = timedelta(days=30)  # how long a certificate stays in the registry after its expiry


@dataclass(frozen=True, slots=True)
class Issued:
    """A signed certificate: common name, serial number, the CA's name, and expiry (UTC)."""

    name: str
    serial: int
    issuer: str
    ends_at: datetime


def record(home: Path, pem: bytes) -> None:
    """Append the first certificate in `pem` to the registry.

    Raises:
        OSError: the registry cannot be written.
    """
    certificate = x509.load_pem_x509_certificate(pem)
    row = {
        "name": _common_name(certificate.subject),
        "serial": f"{certificate.serial_number:x}",
        "issuer": _common_name(certificate.issuer),
        "ends_at": certificate.not_valid_after_utc.isoformat(),
    }
    with _locked(home) as file:
        line_break = b"\n" if _has_incomplete_line(file) else b""  # so that the new line is not joined to the incomplete one
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as out:
            out.write(line_break + json.dumps(row).encode() + b"\n")


def forget_expired(home: Path, *, now: datetime | None = None) -> int:
    """Remove the certificates that expired `RETENTION` or longer before `now` (None: the current time); return their number.

    Raises:
        OSError: the registry cannot be written.
    """
    expiry_limit = (now or datetime.now(UTC)) - RETENTION
    with _locked(home) as file:
        rows = _read_rows(file)
        kept = [row for row in rows if _issued(row).ends_at > expiry_limit]
        if len(kept) < len(rows):
            draft = file.with_name(f".{FILE}.{os.getpid()}")
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
                out.writelines(f"{json.dumps(row)}\n" for row in kept)
                out.flush()
                os.fsync(out.fileno())
            draft.replace(file)
    return len(rows) - len(kept)


def unexpired(home: Path, *, now: datetime | None = None) -> list[Issued]:
    """Return the home's certificates that have not expired at `now` (None: the current time), oldest first."""
    instant = now or datetime.now(UTC)
    return [issued for issued in all_of(home) if issued.ends_at > instant]


def all_of(home: Path) -> list[Issued]:
    """Return all recorded certificates, oldest first, including recently expired ones."""
    return [_issued(row) for row in _read_rows(secret_files.folder(home) / FILE)]


@contextmanager
def _locked(home: Path) -> Iterator[Path]:
    """Lock the registry and yield its path. The lock is on the folder, because the file may be replaced."""
    folder = secret_files.folder(home)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder / FILE
    finally:
        os.close(lock)


def _has_incomplete_line(file: Path) -> bool:
    """Whether the last line is incomplete, because its writer was killed."""
    return file.exists() and file.read_bytes()[-1:] not in (b"", b"\n")


def _read_rows(file: Path) -> list[dict[str, str]]:
    """Return the complete lines of the file, parsed; empty if there is no file."""
    if not file.exists():
        return []
    rows = []
    for line in file.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue  # an incomplete line, whose certificate was never issued
    return rows


def _issued(row: dict[str, str]) -> Issued:
    return Issued(row["name"], int(row["serial"], 16), row["issuer"], datetime.fromisoformat(row["ends_at"]))


def _common_name(name: x509.Name) -> str:
    return str(name.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
