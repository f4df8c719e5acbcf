"""The revocation list of the MQTT CA: re-signed in time, without expired certificates."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from manifold.contracts.tls import REVOKED
from manifold.runtime import secret_files
from manifold.sandbox.platform import cert_registry
from manifold.sandbox.platform.authority import FRONT_DOOR, LISTED_DAYS, revocation_list, signer


def listed(home: Path) -> dict[int, datetime]:
    """Return the serial numbers of all revoked certificates, with their revocation times (UTC)."""
    found = _read(home)
    return {} if found is None else {each.serial_number: each.revocation_date_utc for each in found}


def write(home: Path, revoked: Mapping[int, datetime], now: datetime) -> None:
    """Sign and write the list.

    Raises:
        Permanent: there is no CA.
    """
    folder = secret_files.folder(home)
    secret_files.write(folder / REVOKED, revocation_list(folder, revoked, now=now))


def renew(home: Path, now: datetime) -> bool:
    """Re-sign the list if half of its validity is over, the CA has changed, or an entry expired; return whether it was.

    Raises:
        Permanent: there is no CA.
    """
    ended = {row.serial for row in cert_registry.all_of(home) if row.ends_at <= now}
    found, on_it = _read(home), listed(home)
    kept = {serial: since for serial, since in on_it.items() if serial not in ended}  # unregistered ones stay listed
    if found is not None and len(kept) == len(on_it) and _is_current(home, found, now):
        return False
    write(home, kept, now)
    return True


def ends_at(home: Path) -> datetime | None:
    """Return the next update time of the list; None if there is no list."""
    found = _read(home)
    return None if found is None else found.next_update_utc  # compare with None, because an empty list is falsy


def _is_current(home: Path, found: x509.CertificateRevocationList, now: datetime) -> bool:
    own = signer(secret_files.folder(home), FRONT_DOOR)
    until = found.next_update_utc
    return found.issuer == own.subject and until is not None and until - now >= timedelta(days=LISTED_DAYS / 2)


def _read(home: Path) -> x509.CertificateRevocationList | None:
    try:
        return x509.load_pem_x509_crl((secret_files.folder(home) / REVOKED).read_bytes())
    except FileNotFoundError:
        return None
