"""All groups of settings in one, with what follows from several of them: addresses, URLs and limits."""

from datetime import timedelta
from pathlib import Path
from urllib.parse import urlencode

from manifold.contracts import catalog_properties
from manifold.contracts.http_access import LOOPBACK, is_loopback
from manifold.contracts.signals.settings import SignalStorageSettings
from manifold.contracts.storage import S3
from manifold.contracts.tls import CA, NO_FILES, OF_INNER, OF_REDIS, SECRETS, SERVER, TlsFiles, TlsSettings
from manifold.settings.groups import DispatchSettings, EndpointSettings, MqttSettings, QueueSettings, RecorderSettings
from manifold.settings.lake import HousekeepingSettings, LakeSettings, StorageSettings
from manifold.settings.secret_file import read_secret
from manifold.settings.signals import SignalSettings

SERVICES_PORT = ":1884"  # of the listener for services in infra/emqx
TOPIC_AND_PROPERTIES = 1 << 20  # bytes: more than any publisher needs for them
LARGEST_PACKET = (1 << 28) - 1  # bytes that MQTT can say


class DerivedSettings(
    EndpointSettings,
    MqttSettings,
    TlsSettings,
    RecorderSettings,
    QueueSettings,
    DispatchSettings,
    StorageSettings,
    LakeSettings,
    HousekeepingSettings,
    SignalSettings,
    SignalStorageSettings,
):
    """Values that follow from settings. Nothing is checked here: `manifold.settings` checks settings as it reads them."""

    @property
    def mqtt(self) -> str:
        """URL of the broker."""
        own = f"mqtts://{self.host}:{self.mqtt_services_port}" if self.tls else f"mqtt://{self.host}:{self.mqtt_port}"
        return self.mqtt_url or own

    @property
    def mqtt_for_vehicles(self) -> str:
        """URL of the broker, as vehicles reach it."""
        if self.tls and not self.mqtt_url and not self.mqtt_vehicle_url:
            return f"mqtts://{self.host}:{self.mqtt_port}"
        if self.mqtt_vehicle_url or not self.mqtt_url.endswith(SERVICES_PORT):
            return self.mqtt_vehicle_url or self.mqtt
        return f"{self.mqtt_url.removesuffix(SERVICES_PORT)}:1883"

    def tls_files(self, name: str) -> TlsFiles:
        """The TLS files of the client with this user name at the broker; those of the sandbox if no setting names others."""
        secrets = f"{self.home}/{SECRETS}"
        ca = self.tls_ca or (f"{secrets}/{CA}" if self.tls else "")
        own = f"{secrets}/{name}.pem" if self.tls else ""
        return TlsFiles(ca, self.tls_certificate or own, self.tls_key)

    def local_client(self, of_ca: str, prefix: str) -> dict[str, str]:
        """What a client of the sandbox's own Redis and RabbitMQ adds to their URLs with TLS, by the names of the libraries."""
        own = f"{self.home}/{SECRETS}/{OF_INNER.format(self.tls_service)}"
        return {of_ca: self.tls_files("").ca, f"{prefix}certfile": own, f"{prefix}keyfile": own}

    @property
    def ecq_pending_retention(self) -> timedelta | None:
        """How long a message of a compacted queue may stay pending; None: until it is fetched."""
        days = self.ecq_retention_days if self.ecq_pending_retention_days is None else self.ecq_pending_retention_days
        return timedelta(days=days) if days else None

    @property
    def loopback(self) -> str:
        """Address of what only this machine may reach."""
        return self.host if is_loopback(self.host) else LOOPBACK

    @property
    def bearer(self) -> dict[str, str]:
        """The header of authorization for requests to the services' HTTP; empty without a token."""
        token = self.http_token.get_secret_value()
        return {"Authorization": f"Bearer {token}"} if token else {}

    @property
    def shares_subscriptions(self) -> bool:
        """Whether services subscribe as members of a group; else each replica gets every message, which is safe and wasteful."""
        return self.mqtt_shared == "on" or (self.mqtt_shared == "auto" and bool(self.mqtt_url))

    @property
    def largest_packet(self) -> int:
        """Bytes of the largest MQTT packet that a publisher may send: a trigger, or data, and its topic and properties."""
        return min(max(self.max_trigger_bytes, self.max_data_bytes) + TOPIC_AND_PROPERTIES, LARGEST_PACKET)

    @property
    def redis(self) -> str:
        """URL of Redis, password and all.

        Raises:
            Permanent: the password of the sandbox's own cannot be read.
        """
        if url := self.redis_url.get_secret_value():
            return url
        address = f"{self.loopback}:{self.redis_port}/0"
        if not self.tls:
            return f"redis://{address}"
        user = f"{self.tls_service}:{self._redis_password()}"
        return f"rediss://{user}@{address}?{urlencode(self.local_client('ssl_ca_certs', 'ssl_'))}"

    def _redis_password(self) -> str:
        """Read for each use, so that it is in no environment; empty before the first start."""
        return read_secret(self.home / SECRETS / OF_REDIS.format(self.tls_service))

    @property
    def signals_redis(self) -> str:
        """URL of the Redis of the AMQP door, password and all."""
        return self.signals_redis_url.get_secret_value() or self.redis

    def http(self, port: int) -> str:
        """Address of a service's own HTTP, at this port of `host`."""
        return f"{'https' if self.http_shows.certificate else 'http'}://{self.host}:{port}"

    @property
    def http_shows(self) -> TlsFiles:
        """What HTTP shows; no certificate: it speaks no TLS. The sandbox's own has its key in the same file."""
        if self.http_certificate:
            return TlsFiles(certificate=self.http_certificate, key=self.http_key)
        return TlsFiles(certificate=f"{self.home}/{SECRETS}/{SERVER}") if self.tls else NO_FILES

    @property
    def signals(self) -> str:
        """HTTP address of the AMQP door."""
        return self.http(self.signals_port)

    @property
    def signals_journal_folder(self) -> Path:
        """Folder of the AMQP door's journal; always a local disk."""
        return self.home / "journal" / str(self.signals_node)

    @property
    def recorders(self) -> list[str]:
        """HTTP address of each recorder; never empty."""
        urls = self.recorder_urls or self.http(self.recorder_port)
        return [url.rstrip("/") for url in urls.split(",")]

    @property
    def api_listens(self) -> str:
        """Address on which the API listens."""
        return self.api_host or self.host

    @property
    def api(self) -> str:
        """HTTP address of the API."""
        scheme = "https" if self.http_shows.certificate else "http"
        return self.api_url.rstrip("/") or f"{scheme}://{self.api_listens}:{self.api_port}"

    @property
    def archive(self) -> str:
        """URL of the archive's root."""
        return self.archive_url or f"file://{self.home}/archive"

    @property
    def s3(self) -> S3:
        """The access to object storage."""
        keys = self.s3_access_key.get_secret_value(), self.s3_secret_key.get_secret_value()
        return S3(self.s3_endpoint, self.s3_region, *keys)

    @property
    def catalog(self) -> str:
        """URI of the catalog, as PyIceberg takes it."""
        return self.catalog_uri.get_secret_value() or f"sqlite:///{self.home}/lake/catalog.db"

    @property
    def warehouse_url(self) -> str:
        """URL of the warehouse's root; with a REST catalog also what that calls it, or nothing where it decides itself."""
        if self.catalog_type == "rest":
            return self.warehouse
        return self.warehouse or f"file://{self.home}/lake/warehouse"

    @property
    def lake_on_s3(self) -> bool:
        """Whether the tables lie in object storage; of a warehouse that only the catalog knows, that is assumed."""
        return self.warehouse_url.startswith("s3://") or "://" not in self.warehouse_url

    @property
    def catalog_options(self) -> dict[str, str]:
        """Properties of the catalog besides its type, address and warehouse, the same for PyIceberg and Spark; has secrets."""
        storage = self.s3.for_iceberg() if self.lake_on_s3 else {}
        return storage | catalog_properties.read(self.catalog_properties.get_secret_value())

    @property
    def reports_folder(self) -> str:
        """The location of the HTML reports for people: a folder of this machine, or a URL."""
        return self.reports or str(self.home / "reports")

    @property
    def reports_url(self) -> str:
        """URL of the store of the HTML reports."""
        if "://" in self.reports:
            return self.reports.rstrip("/")
        return (Path(self.reports).expanduser().absolute() if self.reports else self.home / "reports").as_uri()

    @property
    def journal_folder(self) -> Path:
        """Folder of the recorder's journal; always a local disk."""
        return self.home / "journal" / str(self.node)
