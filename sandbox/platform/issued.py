"""The record of the certificates that a home's CAs have signed: what there is to revoke, and when each ends. No key is in it."""

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from adapters import secret_files

FILE = "issued.jsonl"  # among the secrets, one line for each certificate, the oldest first


@dataclass(frozen=True, slots=True)
class Issued:
    """One certificate: its common name, its serial number, its CA, and when it ends (UTC)."""

    name: str
    serial: int
    issuer: str
    ends_at: datetime


def note(home: Path, pem: bytes) -> None:
    """Put the first certificate of `pem` on the record.

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
    file = secret_files.folder(home) / FILE
    # One write for one line: two that issue at once do not tear each other's.
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb", buffering=0) as out:
        out.write(json.dumps(line).encode() + b"\n")


def of_home(home: Path, *, now: datetime | None = None) -> list[Issued]:
    """All certificates of a home that have not ended by `now`, the oldest first."""
    file = secret_files.folder(home) / FILE
    since = now or datetime.now(UTC)
    rows = [_row(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    return [row for row in rows if row.ends_at > since]


def _row(line: dict[str, str]) -> Issued:
    return Issued(line["name"], int(line["serial"], 16), line["issuer"], datetime.fromisoformat(line["ends_at"]))


def _common_name(name: x509.Name) -> str:
    return str(name.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
