"""Makes a Java truststore from PEM, because a JVM reads no PEM, and a store may have a certificate of a site's own CA.

`python -m pipelines.spark.truststore <PEM> <file>` writes the file; a JVM uses it with `-Djavax.net.ssl.trustStore=<file>`.
"""

import sys
from pathlib import Path

from cryptography.hazmat.primitives.serialization import NoEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
from cryptography.x509 import load_pem_x509_certificates


def truststore(pem: bytes) -> bytes:
    """Return a truststore (PKCS #12, without a password) of all certificates in `pem`; during a CA rotation, of both CAs.

    Raises:
        ValueError: `pem` has none.
    """
    found = enumerate(load_pem_x509_certificates(pem))
    return serialize_java_truststore([PKCS12Certificate(each, b"%d" % number) for number, each in found], NoEncryption())


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
