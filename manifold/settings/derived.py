"""All groups of settings in one class, plus values derived from them: addresses, URLs and limits."""

from datetime import timedelta
from pathlib import Path
from urllib.parse import urlencode

from manifold.contracts import catalog_properties
from manifold.contracts.http_access import LOOPBACK, is_loopback
from manifold.contracts.signals.settings import SignalStorageSettings
from manifold.contracts.storage import S3
from manifold.contracts.tls import CA, NO_FILES, OF_INNER, OF_REDIS, SECRETS, SERVER, TlsFiles, TlsSettings
from manifold.settings.groups import (
    CampaignSettings,
    DispatchSettings,
    EndpointSettings,
    MqttSettings,
    QueueSettings,
    RecorderSettings,
)
from manifold.settings.lake import HousekeepingSettings, LakeSettings, StorageSettings
from manifold.settings.secret_file import read_secret
from manifold.settings.signals import SignalSettings

SERVICES_PORT = ":1884"  # port of the services' listener in infra/emqx
TOPIC_AND_PROPERTIES = 1 << 20  # bytes reserved for them; more than any publisher needs
LARGEST_PACKET = (1 << 28) - 1  # maximum packet size of MQTT in bytes


class DerivedSettings(
    EndpointSettings,
    MqttSettings,
    TlsSettings,
    RecorderSettings,
    CampaignSettings,
    QueueSettings,
    DispatchSettings,
    StorageSettings,
    LakeSettings,
    HousekeepingSettings,
    SignalSettings,
    SignalStorageSettings,
):
    """Values derived from settings, without validation, which happens in `manifold.settings`."""

    @property
    def mqtt(self) -> str:
        """URL of the broker for services."""
        own = f"mqtts://{self.host}:{self.mqtt_services_port}" if self.tls else f"mqtt://{self.host}:{self.mqtt_port}"
        return self.mqtt_url or own

    @property
    def mqtt_for_vehicles(self) -> str:
        """URL of the broker for vehicles."""
        if self.tls and not self.mqtt_url and not self.mqtt_vehicle_url:
            return f"mqtts://{self.host}:{self.mqtt_port}"
        if self.mqtt_vehicle_url or not self.mqtt_url.endswith(SERVICES_PORT):
            return self.mqtt_vehicle_url or self.mqtt
        return f"{self.mqtt_url.removesuffix(SERVICES_PORT)}:1883"

    def tls_files(self, name: str) -> TlsFiles:
        """Return the TLS files of the broker user `name`; those of the sandbox if no setting names others."""
        secrets = f"{self.home}/{SECRETS}"
        ca = self.tls_ca or (f"{secrets}/{CA}" if self.tls else "")
        own = f"{secrets}/{name}.pem" if self.tls else ""
        return TlsFiles(ca, self.tls_certificate or own, self.tls_key)

    def local_client(self, of_ca: str, prefix: str) -> dict[str, str]:
        """Return TLS options for URLs of the sandbox's Redis and RabbitMQ, with the option names of their client libraries."""
        own = f"{self.home}/{SECRETS}/{OF_INNER.format(self.tls_service)}"
        return {of_ca: self.tls_files("").ca, f"{prefix}certfile": own, f"{prefix}keyfile": own}

    @property
    def ecq_pending_retention(self) -> timedelta | None:
        """How long a message of a compacted queue may stay pending; None: until it is fetched."""
        days = self.ecq_retention_days if self.ecq_pending_retention_days is None else self.ecq_pending_retention_days
        return timedelta(days=days) if days else None

    @property
    def loopback(self) -> str:
        """Address for listeners that only this machine may reach."""
        return self.host if is_loopback(self.host) else LOOPBACK

    @property
    def bearer(self) -> dict[str, str]:
        """Authorization header for requests to the services' HTTP; empty without a token."""
        token = self.http_token.get_secret_value()
        return {"Authorization": f"Bearer {token}"} if token else {}

    @property
    def shares_subscriptions(self) -> bool:
        """Whether services use shared subscriptions; otherwise each replica gets every message, which is safe but wasteful."""
        return self.mqtt_shared == "on" or (self.mqtt_shared == "auto" and bool(self.mqtt_url))

    @property
    def largest_packet(self) -> int:
        """Maximum size in bytes of a publisher's MQTT packet: a trigger or data, plus topic and properties."""
        return min(max(self.max_trigger_bytes, self.max_data_bytes) + TOPIC_AND_PROPERTIES, LARGEST_PACKET)

    @property
    def redis(self) -> str:
        """URL of Redis, including the password.

        Raises:
            Permanent: the password file of the sandbox's Redis cannot be read.
        """
        if url := self.redis_url.get_secret_value():
            return url
        address = f"{self.loopback}:{self.redis_port}/0"
        if not self.tls:
            return f"redis://{address}"
        user = f"{self.tls_service}:{self._redis_password()}"
        return f"rediss://{user}@{address}?{urlencode(self.local_client('ssl_ca_certs', 'ssl_'))}"

    def _redis_password(self) -> str:
        """Read the password on each use, to keep it out of the environment; empty before the first start."""
        return read_secret(self.home / SECRETS / OF_REDIS.format(self.tls_service))

    @property
    def signals_redis(self) -> str:
        """URL of the AMQP door's Redis, including the password."""
        return self.signals_redis_url.get_secret_value() or self.redis

    def http(self, port: int) -> str:
        """Return the base URL of a service's HTTP on this port of `host`."""
        return f"{'https' if self.http_shows.certificate else 'http'}://{self.host}:{port}"

    @property
    def http_shows(self) -> TlsFiles:
        """Certificate files of the HTTP server; without a certificate it serves plain HTTP. The sandbox's has the key inside."""
        if self.http_certificate:
            return TlsFiles(certificate=self.http_certificate, key=self.http_key)
        return TlsFiles(certificate=f"{self.home}/{SECRETS}/{SERVER}") if self.tls else NO_FILES

    @property
    def signals(self) -> str:
        """Base URL of the AMQP door's HTTP."""
        return self.http(self.signals_port)

    @property
    def signals_journal_folder(self) -> Path:
        """Folder of the AMQP door's journal; always on a local disk."""
        return self.home / "journal" / str(self.signals_node)

    @property
    def recorders(self) -> list[str]:
        """Base URL of each recorder's HTTP; never empty."""
        urls = self.recorder_urls or self.http(self.recorder_port)
        return [url.rstrip("/") for url in urls.split(",")]

    @property
    def api_listens(self) -> str:
        """Address on which the API listens."""
        return self.api_host or self.host

    @property
    def api(self) -> str:
        """Base URL of the API."""
        scheme = "https" if self.http_shows.certificate else "http"
        return self.api_url.rstrip("/") or f"{scheme}://{self.api_listens}:{self.api_port}"

    @property
    def archive(self) -> str:
        """URL of the archive's root."""
        return self.archive_url or f"file://{self.home}/archive"

    @property
    def s3(self) -> S3:
        """Object storage access."""
        keys = self.s3_access_key.get_secret_value(), self.s3_secret_key.get_secret_value()
        return S3(self.s3_endpoint, self.s3_region, *keys)

    @property
    def catalog(self) -> str:
        """URI of the catalog for PyIceberg."""
        return self.catalog_uri.get_secret_value() or f"sqlite:///{self.home}/lake/catalog.db"

    @property
    def warehouse_url(self) -> str:
        """URL of the warehouse's root; for a REST catalog, its name for the warehouse, or empty for its default."""
        if self.catalog_type == "rest":
            return self.warehouse
        return self.warehouse or f"file://{self.home}/lake/warehouse"

    @property
    def lake_on_s3(self) -> bool:
        """Whether the tables are in object storage; assumed if only the catalog knows the warehouse."""
        return self.warehouse_url.startswith("s3://") or "://" not in self.warehouse_url

    @property
    def catalog_options(self) -> dict[str, str]:
        """Catalog properties besides type, address and warehouse, for both PyIceberg and Spark; contains secrets."""
        storage = self.s3.for_iceberg() if self.lake_on_s3 else {}
        return storage | catalog_properties.read(self.catalog_properties.get_secret_value())

    @property
    def reports_folder(self) -> str:
        """Location of the HTML reports: a local folder, or a URL."""
        return self.reports or str(self.home / "reports")

    @property
    def reports_url(self) -> str:
        """URL of the HTML reports' store."""
        if "://" in self.reports:
            return self.reports.rstrip("/")
        return (Path(self.reports).expanduser().absolute() if self.reports else self.home / "reports").as_uri()

    @property
    def journal_folder(self) -> Path:
        """Folder of the recorder's journal; always on a local disk."""
        return self.home / "journal" / str(self.node)
