"""Settings of every process: home, HTTP, log, archive, Redis and TLS."""

from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings

from manifold.contracts.http_access import LOOPBACK, is_loopback
from manifold.contracts.storage import S3
from manifold.contracts.tls import CA, NO_FILES, OF_INNER, OF_REDIS, SECRETS, SERVER, Service, TlsFiles
from manifold.settings.field import ArchiveUrl, Folder, Port, RedisUrl, Secret, of_form
from manifold.settings.field import setting as _s
from manifold.settings.secret_file import read_secret

HttpToken = Annotated[
    Secret, of_form(r"[A-Za-z0-9._~+/=-]*", "must have letters, digits and . _ ~ + / = - only, as a header can carry them")
]


class SharedSettings(BaseSettings):
    """What every process reads: home, HTTP, log, archive, Redis and TLS."""

    home: Folder = _s(Path(".manifold"), "folder of all local state: data of the servers, logs, archive, lake")
    host: str = _s(
        "127.0.0.1",
        "address on which the services' HTTP and the embedded front door listen; what only they use stays on loopback",
    )
    http_token: HttpToken = _s(
        SecretStr(""), "bearer token that the services' HTTP asks for; without one it listens on loopback only"
    )
    http_certificate: str = _s(
        "",
        "file of the certificate that the services' HTTP shows, which then is HTTPS; empty: in the clear, but where tls is set",
    )
    http_key: str = _s("", "file of the key of http_certificate; empty: it is in that file too")
    log_format: Annotated[str, Field(pattern="^(text|json)$")] = _s(
        "text", "how services write their log: text (key=value) or json"
    )
    log_level: Annotated[str, Field(pattern="^(debug|info|warning|error)$")] = _s(
        "info", "the least important log lines of recorder and dispatchers; debug: a line for every claim and acknowledgement"
    )
    archive_url: ArchiveUrl = _s("", "root of the archive, file:// or s3://; empty: <home>/archive")
    s3_endpoint: Annotated[str, Field(pattern="^(https?://.+)?$")] = _s("", "http(s):// address of the store; empty: AWS")
    s3_region: str = _s("us-east-1", "region of the store")
    s3_access_key: Secret = _s(SecretStr(""), "access key; empty: AWS's own chain of credentials")
    s3_secret_key: Secret = _s(SecretStr(""), "secret key that belongs to s3_access_key")
    redis_url: RedisUrl = _s(
        SecretStr(""),
        "where services find Redis; redis+cluster:// and any node: a Redis Cluster; empty: redis://<host>:<redis_port>/0",
    )
    redis_port: Port = _s(6390, "the embedded Redis")
    tls: bool = _s(
        False,
        "the sandbox's front door, Redis and RabbitMQ speak TLS, and clients present certificates of a CA that `make up` makes: "
        "vehicles on mqtt_port, services on mqtt_services_port; Airflow, the API and every service's own HTTP speak HTTPS",
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
    tls_certificate: str = _s("", "file of the certificate that this service presents to the broker; empty: none")
    tls_key: str = _s("", "file of the key of tls_certificate; empty: it is in that file too")

    @property
    def loopback(self) -> str:
        """Address of listeners that only this machine may reach: the setting `host` if that is a loopback address."""
        return self.host if is_loopback(self.host) else LOOPBACK

    @property
    def bearer(self) -> dict[str, str]:
        """Authorization header for requests to the services' HTTP; empty without a token."""
        token = self.http_token.get_secret_value()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def http(self, port: int) -> str:
        """Return the base URL of a service's HTTP on this port of `host`."""
        scheme = "https" if self.http_tls_files.certificate else "http"
        return f"{scheme}://{self.host}:{port}"

    @property
    def http_tls_files(self) -> TlsFiles:
        """Certificate and key of the HTTP servers; without a certificate they serve plain HTTP.

        The sandbox's certificate file also contains the key.
        """
        if self.http_certificate:
            return TlsFiles(certificate=self.http_certificate, key=self.http_key)
        return TlsFiles(certificate=f"{self.home}/{SECRETS}/{SERVER}") if self.tls else NO_FILES

    def tls_files(self, name: str) -> TlsFiles:
        """Return the TLS files with which the user `name` connects to the broker: the sandbox's, unless settings name others."""
        secrets = f"{self.home}/{SECRETS}"
        ca = self.tls_ca or (f"{secrets}/{CA}" if self.tls else "")
        sandbox_certificate = f"{secrets}/{name}.pem" if self.tls else ""
        return TlsFiles(ca, self.tls_certificate or sandbox_certificate, self.tls_key)

    def local_tls_options(self, ca_option: str, prefix: str) -> dict[str, str]:
        """Return the TLS options that a client needs in the URL of the sandbox's Redis or RabbitMQ, as option → file.

        `ca_option` is the client library's name of the option with the CA file. Its names of the options with certificate and key
        are `certfile` and `keyfile`, each after `prefix`.
        """
        certificate_and_key = f"{self.home}/{SECRETS}/{OF_INNER.format(self.tls_service)}"
        return {
            ca_option: self.tls_files("").ca,
            f"{prefix}certfile": certificate_and_key,
            f"{prefix}keyfile": certificate_and_key,
        }

    @property
    def redis(self) -> str:
        """URL of Redis, including the password.

        Raises:
            Permanent: the password file of the sandbox's Redis cannot be read.
        """
        configured_url = self.redis_url.get_secret_value()
        if configured_url:
            return configured_url
        address = f"{self.loopback}:{self.redis_port}/0"
        if not self.tls:
            return f"redis://{address}"
        user_and_password = f"{self.tls_service}:{self._redis_password()}"
        options = urlencode(self.local_tls_options("ssl_ca_certs", "ssl_"))
        return f"rediss://{user_and_password}@{address}?{options}"

    def _redis_password(self) -> str:
        """Return the password of the sandbox's Redis; empty before the first start.

        It is read from its file at each use, and so never is in the environment of a process.
        """
        return read_secret(self.home / SECRETS / OF_REDIS.format(self.tls_service))

    @property
    def archive(self) -> str:
        """URL of the archive's root."""
        return self.archive_url or f"file://{self.home}/archive"

    @property
    def s3(self) -> S3:
        """Object storage access."""
        access_key, secret_key = self.s3_access_key.get_secret_value(), self.s3_secret_key.get_secret_value()
        return S3(self.s3_endpoint, self.s3_region, access_key, secret_key)
