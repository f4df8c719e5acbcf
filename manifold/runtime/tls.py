"""TLS contexts for services, built from files, and the certificate revocation list."""

import ssl
from pathlib import Path

from manifold.contracts.tls import NO_FILES, TlsFiles
from manifold.settings import Settings

_BELIEVES_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context for connections to a server, with hostname verification; TLS 1.2 or newer.

    Raises:
        OSError: a file cannot be read, or contains no certificate or key.
    """
    context = ssl.create_default_context(cafile=files.ca or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.certificate:
        context.load_cert_chain(files.certificate, files.key or None)
    return context


def web_context(settings: Settings, url: str) -> ssl.SSLContext | None:
    """Return the context for requests to a Manifold service at `url`; None if it is not HTTPS.

    Raises:
        OSError: the CA file cannot be read.
    """
    return client_context(TlsFiles(settings.tls_files("").ca)) if url.startswith("https:") else None


def verified(settings: Settings, url: str) -> ssl.SSLContext:
    """Return the same for httpx's option `verify`. For plain HTTP the context trusts no CA.

    By default httpx would load the system's CAs for every client, 18 ms of CPU, even for plain HTTP.

    Raises:
        OSError: as for `web_context`.
    """
    return web_context(settings, url) or _BELIEVES_NOBODY


def outside_context(settings: Settings) -> ssl.SSLContext:
    """Return the context for requests outside Manifold: trusts the system's CAs and those in `tls_ca`.

    httpx would use SSL_CERT_FILE alone, which in a deployment names the CA of its object store.

    Raises:
        OSError: the CA file cannot be read.
    """
    context = client_context(NO_FILES)
    if settings.tls_ca:
        context.load_verify_locations(settings.tls_ca)
    return context


def web_server_context(tls_files: TlsFiles) -> ssl.SSLContext:
    """Return the context of an HTTP server: no client certificates; TLS 1.2 or newer.

    Raises:
        OSError: a file cannot be read, or contains no certificate or key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tls_files.certificate, tls_files.key or None)
    return context


def server_context(ca: Path, certificate: Path) -> ssl.SSLContext:
    """Return the context of a listener that requires client certificates of `ca`; TLS 1.2 or newer.

    `certificate` includes the key.

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


def revoked_serials(ca: Path, listed: Path) -> frozenset[int]:
    """Return the serial numbers of a PEM revocation list signed by this CA; empty if there is no list.

    Raises:
        OSError: a file cannot be read.
        ValueError: the list is malformed, or signed by another CA.
    """
    from cryptography import x509  # slow import, only needed with a list

    try:
        content = listed.read_bytes()
    except FileNotFoundError:
        return frozenset()
    found = x509.load_pem_x509_crl(content)
    signers = x509.load_pem_x509_certificates(ca.read_bytes())
    if not any(found.is_signature_valid(signer.public_key()) for signer in signers):  # type: ignore[arg-type]  # signing key types only
        raise ValueError(f"{listed} is not signed by a CA of {ca}")
    return frozenset(each.serial_number for each in found)
