"""TLS contexts for services, built from files, and the certificate revocation list."""

import ssl
from pathlib import Path

from manifold.contracts.tls import NO_FILES, TlsFiles
from manifold.settings import Settings

_TRUSTS_NO_CA = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context for connections to a server, with hostname verification; TLS 1.2 or newer.

    It trusts the CAs in `files.ca`, or if that is empty, those of the system.

    Raises:
        OSError: a file cannot be read, or contains no certificate or key.
    """
    context = ssl.create_default_context(cafile=files.ca or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.certificate:
        context.load_cert_chain(files.certificate, files.key or None)
    return context


def web_context(settings: Settings, url: str) -> ssl.SSLContext | None:
    """Return the context for requests to a Manifold service at `url`; None if the URL is not HTTPS.

    Raises:
        OSError: the CA file cannot be read.
    """
    if not url.startswith("https:"):
        return None
    trusted_ca = settings.tls_files("").ca
    return client_context(TlsFiles(trusted_ca))


def verified(settings: Settings, url: str) -> ssl.SSLContext:
    """Return the context for requests to a Manifold service at `url`, as httpx's option `verify`.

    For plain HTTP it is a context that trusts no CA. Without it, httpx would load the system's CAs for every client, which takes
    18 ms of CPU.

    Raises:
        OSError: the CA file cannot be read.
    """
    return web_context(settings, url) or _TRUSTS_NO_CA


def outside_context(settings: Settings) -> ssl.SSLContext:
    """Return the context for requests outside Manifold: trusts the system's CAs and those in `tls_ca`.

    By default httpx would trust only the CAs in SSL_CERT_FILE, which in a deployment names the CA of the object store.

    Raises:
        OSError: the CA file cannot be read.
    """
    context = client_context(NO_FILES)
    if settings.tls_ca:
        context.load_verify_locations(settings.tls_ca)
    return context


def web_server_context(tls_files: TlsFiles) -> ssl.SSLContext:
    """Return the context of an HTTP server, which asks for no client certificates; TLS 1.2 or newer.

    Raises:
        OSError: a file cannot be read, or contains no certificate or key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tls_files.certificate, tls_files.key or None)
    return context


def server_context(ca: Path, certificate: Path) -> ssl.SSLContext:
    """Return the context of a listener that requires client certificates signed by `ca`; TLS 1.2 or newer.

    The file `certificate` also contains the key.

    Raises:
        OSError: a file cannot be read, or contains no certificate or key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # session tickets would bypass the revocation check
    context.load_verify_locations(ca)
    context.load_cert_chain(certificate)
    return context


def revoked_serials(ca: Path, revocation_list: Path) -> frozenset[int]:
    """Return the serial numbers in a revocation list (PEM) that is signed by one of the CAs in `ca`; empty if there is no file.

    Raises:
        OSError: a file cannot be read.
        ValueError: the list is malformed, or signed by another CA.
    """
    from cryptography import x509  # imported here, because the import is slow

    try:
        content = revocation_list.read_bytes()
    except FileNotFoundError:
        return frozenset()
    entries = x509.load_pem_x509_crl(content)
    signers = x509.load_pem_x509_certificates(ca.read_bytes())
    if not any(entries.is_signature_valid(signer.public_key()) for signer in signers):  # type: ignore[arg-type]  # signing key types only
        raise ValueError(f"{revocation_list} is not signed by a CA of {ca}")
    return frozenset(entry.serial_number for entry in entries)
