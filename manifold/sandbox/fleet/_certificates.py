"""Certificates of simulated vehicles, signed by the sandbox's CA, for a platform with TLS."""

import ssl
import tempfile
from pathlib import Path

from manifold.contracts.tls import TlsFiles
from manifold.runtime.tls import client_context
from manifold.sandbox.platform import certificates
from manifold.settings import Settings


class VehicleCertificates:
    """Issues a certificate for each vehicle at its first connection, and keeps its TLS context in memory."""

    def __init__(self, settings: Settings) -> None:
        self._home, self._ca = settings.home, settings.tls_files("").ca
        self._contexts: dict[str, ssl.SSLContext] = {}

    def context(self, vin: str) -> ssl.SSLContext:
        """Return the vehicle's TLS context."""
        if vin not in self._contexts:
            with tempfile.NamedTemporaryFile(prefix="manifold-vehicle-") as file:  # ssl loads certificates from files only
                Path(file.name).write_bytes(certificates.issue(self._home, vin))
                self._contexts[vin] = client_context(TlsFiles(self._ca, file.name))
        return self._contexts[vin]
