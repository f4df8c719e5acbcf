"""The revocation list of the CA for MQTT: signed anew in time, without certificates that have ended."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from manifold.contracts.tls import REVOKED
from manifold.runtime import secret_files
from manifold.sandbox.platform import cert_registry
from manifold.sandbox.platform.authority import FRONT_DOOR, LISTED_DAYS, revocation_list, signer


def listed(home: Path) -> dict[int, datetime]:
    """The serial numbers of all that are revoked, and since when (UTC)."""
    found = _read(home)
    return {} if found is None else {each.serial_number: each.revocation_date_utc for each in found}


def write(home: Path, revoked: Mapping[int, datetime], now: datetime) -> None:
    """Write and sign the list.

    Raises:
        Permanent: there is no CA.
    """
    folder = secret_files.folder(home)
    secret_files.write(folder / REVOKED, revocation_list(folder, revoked, now=now))


def keep(home: Path, now: datetime) -> bool:
    """Sign the list anew where half of its time is over, another CA signs now, or something on it has ended; whether it was.

    Raises:
        Permanent: there is no CA.
    """
    ended = {row.serial for row in cert_registry.all_of(home) if row.ends_at <= now}
    found, on_it = _read(home), listed(home)
    kept = {serial: since for serial, since in on_it.items() if serial not in ended}  # what nobody has on record stays
    if found is not None and len(kept) == len(on_it) and _lasts(home, found, now):
        return False
    write(home, kept, now)
    return True


def ends_at(home: Path) -> datetime | None:
    """When the list should have been signed anew; None where there is none."""
    found = _read(home)
    return None if found is None else found.next_update_utc  # an empty list is falsy


def _lasts(home: Path, found: x509.CertificateRevocationList, now: datetime) -> bool:
    own = signer(secret_files.folder(home), FRONT_DOOR)
    until = found.next_update_utc
    return found.issuer == own.subject and until is not None and until - now >= timedelta(days=LISTED_DAYS / 2)


def _read(home: Path) -> x509.CertificateRevocationList | None:
    try:
        return x509.load_pem_x509_crl((secret_files.folder(home) / REVOKED).read_bytes())
    except FileNotFoundError:
        return None
