"""TLS settings: whether the sandbox uses it, and the certificate files of a service. Pure."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_settings import BaseSettings

SECRETS = "secrets"  # folder in the sandbox home with its generated secrets
CA, SERVER, REVOKED = "ca.pem", "server.pem", "revoked.pem"  # file names in it; a client's is its common name and .pem
INNER_CA = "inner-ca.pem"  # the CA trusted by Redis and RabbitMQ; it signs nothing for the MQTT listener

# Clients of the sandbox's Redis and RabbitMQ: the services of infra/redis/rights.json, and the operator.
Service = Literal["recorder", "dispatcher", "campaigner", "signals", "api", "jobs", "operator"]
OPERATOR: Service = "operator"
OF_INNER = "inner-{}.pem"  # certificate file of a service, by its common name
OF_REDIS = "redis_{}"  # password file of a Redis user


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Names of PEM files; empty: none. They are read for each connection, so that renewals take effect."""

    ca: str = ""  # trusted CAs; empty: those of the system
    certificate: str = ""  # of this client, with intermediate certificates
    key: str = ""  # empty: the key is in the certificate's file


NO_FILES = TlsFiles()


def _s(default: Any, meaning: str) -> Any:
    return Field(default=default, description=meaning)


class TlsSettings(BaseSettings):
    """TLS: trusted CAs, and the certificates of services."""

    tls: bool = _s(
        False,
        "the sandbox's front door, Redis and RabbitMQ speak TLS, and clients show certificates of a CA that `make up` makes: "
        "vehicles on mqtt_port, services on mqtt_services_port; Airflow, the API and every service's own HTTP speak HTTPS",
    )
    mqtt_services_port: Annotated[int, Field(ge=1, le=65535)] = _s(
        1884, "the front door for services and publishers, where tls is set; else they share mqtt_port with the vehicles"
    )
    tls_service: Service = _s(
        "operator",
        "as whom this process comes to the sandbox's own Redis and RabbitMQ, where tls is set: with that one's certificate, and "
        "as that user of Redis. `make up` sets it for each service; the operator may do all",
    )
    require_tls: bool = _s(
        False, "refuse to start where a setting would talk, or listen, in the clear beyond this machine: what an environment sets"
    )
    tls_ca: str = _s(
        "",
        "file of the certificates that services trust at the broker (mqtts://), at each other's HTTP and at EMQX's API; empty: "
        "those of the system",
    )
    tls_certificate: str = _s("", "file of the certificate that this service shows the broker; empty: none")
    tls_key: str = _s("", "file of the key of tls_certificate; empty: it is in that file too")
    http_certificate: str = _s(
        "",
        "file of the certificate that the services' HTTP shows, which then is HTTPS; empty: in the clear, but where tls is set",
    )
    http_key: str = _s("", "file of the key of http_certificate; empty: it is in that file too")
