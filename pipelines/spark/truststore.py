"""Makes a Java truststore from a PEM file: `python -m pipelines.spark.truststore <PEM> <file>`.

A JVM uses the file with `-Djavax.net.ssl.trustStore=<file>`. It needs a truststore if an object store or a catalog has a
certificate of the site's own CA, because a JVM cannot read PEM files.
"""

import sys
from pathlib import Path

from cryptography.hazmat.primitives.serialization import NoEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
from cryptography.x509 import load_pem_x509_certificates


def truststore(pem: bytes) -> bytes:
    """Return a truststore (PKCS #12, without a password) with all certificates in `pem`, such as both CAs during a rotation.

    Raises:
        ValueError: `pem` contains no certificate.
    """
    certificates = load_pem_x509_certificates(pem)
    entries = [PKCS12Certificate(certificate, b"%d" % index) for index, certificate in enumerate(certificates)]
    return serialize_java_truststore(entries, NoEncryption())


def main() -> int:
    """Write the truststore; return the exit status."""
    if len(sys.argv) != 3:
        sys.stderr.write("usage: python -m pipelines.spark.truststore <PEM> <file>\n")
        return 2
    pem, file = map(Path, sys.argv[1:])
    file.write_bytes(truststore(pem.read_bytes()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
