"""The settings of TLS: whether the sandbox speaks it, and the files by which a service shows who it is. Pure."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_settings import BaseSettings

SECRETS = "secrets"  # the folder of a home with what the sandbox makes up
CA, SERVER, REVOKED = "ca.pem", "server.pem", "revoked.pem"  # names of files in it; a client's is its common name and .pem
INNER_CA = "inner-ca.pem"  # the CA that Redis and RabbitMQ trust; it signs nothing of the front door

# Who comes to the sandbox's Redis and RabbitMQ: the services of infra/redis/rights.json, and whoever runs the sandbox.
Service = Literal["recorder", "dispatcher", "signals", "api", "jobs", "operator"]
OPERATOR: Service = "operator"
OF_INNER = "inner-{}.pem"  # the file of the certificate that has a service's name as its common name
OF_REDIS = "redis_{}"  # the file of the password of the user of that name


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Names of files in PEM; empty: none. They are read for each connection, so that they can be renewed."""

    ca: str = ""  # the CAs to trust; empty: those of the system
    certificate: str = ""  # of this client, with what lies between it and its CA
    key: str = ""  # none: it is in the file of the certificate


NO_FILES = TlsFiles()


def _s(default: Any, meaning: str) -> Any:
    return Field(default=default, description=meaning)


class TlsSettings(BaseSettings):
    """Who is believed at the front door, and by what a service is known there."""

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
