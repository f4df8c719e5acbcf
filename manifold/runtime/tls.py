"""TLS for services: contexts made from files, and the list of revoked certificates."""

import ssl
from pathlib import Path

from manifold.contracts.tls import NO_FILES, TlsFiles
from manifold.settings import Settings

_BELIEVES_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """For a connection to a server whose certificate names its host; TLS 1.2 or newer.

    Raises:
        OSError: a file cannot be read, or is no certificate or key.
    """
    context = ssl.create_default_context(cafile=files.ca or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.certificate:
        context.load_cert_chain(files.certificate, files.key or None)
    return context


def web_context(settings: Settings, url: str) -> ssl.SSLContext | None:
    """The TLS context for a request to a service of Manifold at `url`, by the settings; None if that is not HTTPS.

    Raises:
        OSError: the file of the CA cannot be read.
    """
    return client_context(TlsFiles(settings.tls_files("").ca)) if url.startswith("https:") else None


def verified(settings: Settings, url: str) -> ssl.SSLContext:
    """The same for httpx: its option `verify`. Where that is not HTTPS it believes nobody.

    httpx would read the system's authorities for every client, 18 ms of CPU, and for plain HTTP ask none of them.

    Raises:
        OSError: as `web_context`.
    """
    return web_context(settings, url) or _BELIEVES_NOBODY


def outside_context(settings: Settings) -> ssl.SSLContext:
    """The TLS context for a request to a server outside of Manifold: trusts the CAs of the system and those in `tls_ca`.

    httpx would ask SSL_CERT_FILE alone, which in an environment has the authority of its object store.

    Raises:
        OSError: the file of the CA cannot be read.
    """
    context = client_context(NO_FILES)
    if settings.tls_ca:
        context.load_verify_locations(settings.tls_ca)
    return context


def web_server_context(shown: TlsFiles) -> ssl.SSLContext:
    """The TLS context of an HTTP server: clients need no certificate; TLS 1.2 or newer.

    Raises:
        OSError: the file cannot be read, or is no certificate or key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(shown.certificate, shown.key or None)
    return context


def server_context(ca: Path, certificate: Path) -> ssl.SSLContext:
    """For a listener that lets in nobody without a certificate of `ca`; TLS 1.2 or newer. `certificate` has the key too.

    Raises:
        OSError: a file cannot be read, or is no certificate or key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # a ticket would let in a certificate that is no longer good
    context.load_verify_locations(ca)
    context.load_cert_chain(certificate)
    return context


def revoked_serials(ca: Path, listed: Path) -> frozenset[int]:
    """Serial numbers on a certificate revocation list in PEM that this CA has signed; none where there is no list.

    Raises:
        OSError: a file cannot be read.
        ValueError: it is no list, or somebody else's.
    """
    from cryptography import x509  # takes a while that who has no list need not wait

    try:
        content = listed.read_bytes()
    except FileNotFoundError:
        return frozenset()
    found = x509.load_pem_x509_crl(content)
    signers = x509.load_pem_x509_certificates(ca.read_bytes())
    if not any(found.is_signature_valid(signer.public_key()) for signer in signers):  # type: ignore[arg-type]  # of those kinds that sign
        raise ValueError(f"{listed} is not signed by a CA of {ca}")
    return frozenset(each.serial_number for each in found)
