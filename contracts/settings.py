"""Every setting, in one frozen object that is read once, at the edge: environment `MANIFOLD_<NAME>`, then one optional file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from contracts.errors import SettingsError
from contracts.setting_groups import (
    DispatchSettings,
    HousekeepingSettings,
    IntakeSettings,
    LakeSettings,
    MqttSettings,
    PlaceSettings,
    QueueSettings,
    StorageSettings,
)
from contracts.storage import S3

PREFIX = "MANIFOLD_"
FILE_VARIABLE = "MANIFOLD_FILE"
DEFAULT_FILE = "manifold.toml"


class Settings(
    PlaceSettings,
    MqttSettings,
    IntakeSettings,
    QueueSettings,
    DispatchSettings,
    StorageSettings,
    LakeSettings,
    HousekeepingSettings,
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

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then the file."""
        del dotenv_settings, file_secret_settings
        return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls, settings_file()))

    @property
    def mqtt(self) -> str:
        """URL of the broker."""
        return self.mqtt_url or f"mqtt://{self.host}:{self.mqtt_port}"

    @property
    def shares_subscriptions(self) -> bool:
        """Whether services subscribe as members of a group; else each replica gets every message, which is safe and wasteful."""
        return self.mqtt_shared == "on" or (self.mqtt_shared == "auto" and bool(self.mqtt_url))

    @property
    def redis(self) -> str:
        """URL of Redis, password and all."""
        return self.redis_url.get_secret_value() or f"redis://{self.host}:{self.redis_port}/0"

    @property
    def recorders(self) -> list[str]:
        """HTTP address of each recorder; never empty."""
        urls = self.recorder_urls or f"http://{self.host}:{self.recorder_port}"
        return [url.rstrip("/") for url in urls.split(",")]

    @property
    def archive(self) -> str:
        """URL of the archive's root."""
        return self.archive_url or f"file://{self.home}/archive"

    @property
    def s3(self) -> S3:
        """How object storage is reached."""
        keys = self.s3_access_key.get_secret_value(), self.s3_secret_key.get_secret_value()
        return S3(self.s3_endpoint, self.s3_region, *keys)

    @property
    def catalog(self) -> str:
        """URI of the catalog, as PyIceberg takes it."""
        return self.catalog_uri.get_secret_value() or f"sqlite:///{self.home}/lake/catalog.db"

    @property
    def warehouse_url(self) -> str:
        """URL of the warehouse's root."""
        return self.warehouse or f"file://{self.home}/lake/warehouse"

    @property
    def reports_folder(self) -> Path:
        """Folder of the HTML reports."""
        return Path(self.reports) if self.reports else self.home / "reports"

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
    problem = f"{PREFIX}{name.upper()}={error['input']!r}: {error['msg'][0].lower()}{error['msg'][1:]}"
    field = Settings.model_fields.get(name)
    return problem if field is None else f"{problem} ({field.description})"


__all__ = ["Settings", "load_settings", "settings_file", "source_of", "unknown_variables"]
