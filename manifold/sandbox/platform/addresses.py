"""Addresses of the embedded platform's servers and services, as printed by `manifold status`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from manifold.messaging.amqp import shown_url
from manifold.runtime import secret_files
from manifold.sandbox.platform import airflow
from manifold.settings import Settings


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of all servers and services. The URLs contain no passwords."""

    mqtt: str  # for vehicles
    mqtt_services: str  # for services and publishers; without TLS the same as `mqtt`
    redis: str
    catalog: Mapping[str, str]
    archive: str
    airflow: str
    reports: str
    api: str
    amqp: str
    secrets: str  # folder of the generated secrets

    @classmethod
    def of(cls, settings: Settings) -> "Addresses":
        """Build the addresses from the settings."""
        return cls(
            mqtt=_without_password(settings.mqtt_for_vehicles),
            mqtt_services=_without_password(settings.mqtt),
            redis=_without_password(settings.redis),
            catalog={
                "name": settings.catalog_name,
                "type": settings.catalog_type,
                "uri": _without_password(settings.catalog),
                "warehouse": settings.warehouse_url,
            },
            archive=settings.archive,
            airflow=airflow.url(settings),
            reports=settings.reports_folder,
            api=settings.api,
            amqp=_without_password(shown_url(settings)),
            secrets=str(secret_files.folder(settings.home)),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for `manifold status --json`."""
        return {
            "mqtt": self.mqtt,
            "mqtt_services": self.mqtt_services,
            "redis": self.redis,
            "catalog": dict(self.catalog),
            "archive": self.archive,
            "airflow": self.airflow,
            "reports": self.reports,
            "api": self.api,
            "amqp": self.amqp,
            "secrets": self.secrets,
        }


def _without_password(url: str) -> str:
    """Return the URL with `***` in place of its password."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    netloc = parts.netloc.replace(f":{parts.password}@", ":***@")
    return urlunsplit(parts._replace(netloc=netloc))
