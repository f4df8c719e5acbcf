"""Every setting, in one frozen object that is read once, at the edge: environment `MANIFOLD_<NAME>`, then one optional file."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from contracts import catalog_properties
from contracts.errors import SettingsError
from contracts.faces import LOOPBACK, is_loopback
from contracts.setting_groups import (
    DispatchSettings,
    EndpointSettings,
    HousekeepingSettings,
    LakeSettings,
    MqttSettings,
    QueueSettings,
    RecorderSettings,
    StorageSettings,
)
from contracts.signal_settings import CONTRACT_NAMES, SignalSettings, from_contract_names
from contracts.signals.bounds import read_bounds
from contracts.signals.settings import SignalStorageSettings
from contracts.storage import S3

PREFIX = "MANIFOLD_"
FILE_VARIABLE = "MANIFOLD_FILE"
DEFAULT_FILE = "manifold.toml"
SERVICES_PORT = ":1884"  # of the listener for services in infra/emqx
TOPIC_AND_PROPERTIES = 1 << 20  # bytes: more than any publisher needs for them
LARGEST_PACKET = (1 << 28) - 1  # bytes that MQTT can say


class Settings(
    EndpointSettings,
    MqttSettings,
    RecorderSettings,
    QueueSettings,
    DispatchSettings,
    StorageSettings,
    LakeSettings,
    HousekeepingSettings,
    SignalSettings,
    SignalStorageSettings,
):
    """All of Manifold's settings. Flat on purpose: `segment_max_seconds` is `MANIFOLD_SEGMENT_MAX_SECONDS`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", validate_default=True)

    @field_validator("home", "jars")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        return path.expanduser().absolute()

    @field_validator("topic_prefix")
    @classmethod
    def _plain_prefix(cls, prefix: str) -> str:
        if not prefix or prefix.strip("/") != prefix or set(prefix) & set("+#"):
            raise ValueError("must be one or more topic levels without + and #, not beginning or ending with /")
        return prefix

    @field_validator("http_token")
    @classmethod
    def _header(cls, token: SecretStr) -> SecretStr:
        if not re.fullmatch(r"[A-Za-z0-9._~+/=-]*", token.get_secret_value()):
            raise ValueError("must have letters, digits and . _ ~ + / = - only, as a header can carry them")
        return token

    @field_validator("signals_bounds")
    @classmethod
    def _bounds(cls, text: str) -> str:
        read_bounds(text)
        return text

    @field_validator("catalog_properties", mode="before")
    @classmethod
    def _properties(cls, value: object) -> str:
        return catalog_properties.normalised(value.get_secret_value() if isinstance(value, SecretStr) else value)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then its names of the signals' contract, then the file."""
        del dotenv_settings, file_secret_settings
        contract = InitSettingsSource(settings_cls, from_contract_names(os.environ))
        return (init_settings, env_settings, contract, TomlConfigSettingsSource(settings_cls, settings_file()))

    @property
    def mqtt(self) -> str:
        """URL of the broker."""
        return self.mqtt_url or f"mqtt://{self.host}:{self.mqtt_port}"

    @property
    def mqtt_for_vehicles(self) -> str:
        """URL of the broker, as vehicles reach it."""
        if self.mqtt_vehicle_url or not self.mqtt_url.endswith(SERVICES_PORT):
            return self.mqtt_vehicle_url or self.mqtt
        return f"{self.mqtt_url.removesuffix(SERVICES_PORT)}:1883"

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
        """URL of Redis, password and all."""
        return self.redis_url.get_secret_value() or f"redis://{self.loopback}:{self.redis_port}/0"

    @property
    def signals_redis(self) -> str:
        """URL of the Redis of the AMQP door, password and all."""
        return self.signals_redis_url.get_secret_value() or self.redis

    @property
    def signals(self) -> str:
        """HTTP address of the AMQP door."""
        return f"http://{self.host}:{self.signals_port}"

    @property
    def signals_journal_folder(self) -> Path:
        """Folder of the AMQP door's journal; always a local disk."""
        return self.home / "journal" / str(self.signals_node)

    @property
    def recorders(self) -> list[str]:
        """HTTP address of each recorder; never empty."""
        urls = self.recorder_urls or f"http://{self.host}:{self.recorder_port}"
        return [url.rstrip("/") for url in urls.split(",")]

    @property
    def api_listens(self) -> str:
        """Address on which the API listens."""
        return self.api_host or self.host

    @property
    def api(self) -> str:
        """HTTP address of the API."""
        return self.api_url.rstrip("/") or f"http://{self.api_listens}:{self.api_port}"

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


def settings_file(env: Mapping[str, str] = os.environ) -> Path:
    """The optional file: `MANIFOLD_FILE`, else `manifold.toml` in the working folder."""
    return Path(env.get(FILE_VARIABLE, DEFAULT_FILE))


def unknown_variables(env: Mapping[str, str] = os.environ) -> list[str]:
    """Variables that look like settings and are none: mostly spelling mistakes."""
    known = {PREFIX + name.upper() for name in Settings.model_fields} | {FILE_VARIABLE}
    return sorted(name for name in env if name.startswith(PREFIX) and name.upper() not in known)


def source_of(name: str, env: Mapping[str, str] = os.environ) -> str:
    """Where the value of setting `name` came from: the variable, the file, or `default`."""
    variable = PREFIX + name.upper()
    if any(key.upper() == variable for key in env):
        return variable
    for of_contract, setting in CONTRACT_NAMES.items():
        if setting == name and env.get(of_contract):
            return of_contract
    file = settings_file(env)
    return str(file) if name in TomlConfigSettingsSource(Settings, file)() else "default"


def load_settings(**overrides: Any) -> Settings:
    """Every setting, from `overrides`, the environment and the file.

    Raises:
        SettingsError: one or more settings are wrong; all are named together, with value and remedy.
    """
    unknown = [f"{name} is not a setting; `manifold settings` lists them all" for name in unknown_variables()]
    try:
        settings = Settings(**overrides)
    except ValidationError as exc:
        raise SettingsError("; ".join(unknown + [_problem(dict(error)) for error in exc.errors()])) from exc
    except ValueError as exc:  # the file is not TOML
        raise SettingsError(f"{settings_file()}: {exc}; correct the file") from exc
    if unknown:
        raise SettingsError("; ".join(unknown))
    return settings


def _problem(error: dict[str, Any]) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{name} in {settings_file()} is not a setting; `manifold settings` lists them all"
    field = Settings.model_fields.get(name)
    shown = "***" if field is not None and field.annotation is SecretStr else repr(error["input"])
    problem = f"{PREFIX}{name.upper()}={shown}: {error['msg'][0].lower()}{error['msg'][1:]}"
    return problem if field is None else f"{problem} ({field.description})"


__all__ = ["Settings", "load_settings", "settings_file", "source_of", "unknown_variables"]
