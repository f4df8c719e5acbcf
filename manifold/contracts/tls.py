"""The certificate files of services, and their names in the sandbox. Pure."""

from dataclasses import dataclass
from typing import Literal

SECRETS = "secrets"  # folder in the sandbox home with its generated secrets
# File names in the folder of secrets. A client's certificate file is named by its common name and `.pem`.
CA, SERVER, REVOKED = "ca.pem", "server.pem", "revoked.pem"
INNER_CA = "inner-ca.pem"  # the CA trusted by Redis and RabbitMQ; it signs nothing for the MQTT listener

# Clients of the sandbox's Redis and RabbitMQ: the services of infra/redis/rights.json, and the operator.
Service = Literal["recorder", "dispatcher", "campaigner", "signals", "api", "jobs", "operator"]
OPERATOR: Service = "operator"
OF_INNER = "inner-{}.pem"  # certificate file of a service, by its common name
OF_REDIS = "redis_{}"  # password file of a Redis user


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Names of PEM files; empty: none. The files are read again for each connection, so that renewals take effect."""

    ca: str = ""  # trusted CAs; empty: those of the system
    certificate: str = ""  # of this client, with intermediate certificates
    key: str = ""  # empty: the key is in the certificate's file


NO_FILES = TlsFiles()
