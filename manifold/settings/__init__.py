"""All settings in one frozen object, read once at startup: environment `MANIFOLD_<NAME>`, then one optional file."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from manifold.contracts import catalog_properties
from manifold.contracts.errors import SettingsError
from manifold.contracts.lineage import RunName
from manifold.contracts.signals.bounds import read_bounds
from manifold.settings.derived import DerivedSettings
from manifold.settings.plaintext_endpoints import plaintext_errors
from manifold.settings.signals import CONTRACT_NAMES
from manifold.settings.urls import SCHEMES, check_url

PREFIX = "MANIFOLD_"
FILE_VARIABLE = "MANIFOLD_FILE"
DEFAULT_FILE = "manifold.toml"
FORMER_NAMES = {"MANIFOLD_EXPRESS": "direct_enqueue"}  # variables of earlier versions
OTHER_NAMES = CONTRACT_NAMES | FORMER_NAMES  # aliases, used if the setting's own variable is not set

# Patterns of some secret settings, and the error text.
FORMS = {
    "http_token": (r"[A-Za-z0-9._~+/=-]*", "must have letters, digits and . _ ~ + / = - only, as a header can carry them"),
    "lineage_url": (r"(https?://[^/]+.*|file:///.+)?", "must begin with http://, https:// or file:///"),
}


class Settings(DerivedSettings):
    """All of Manifold's settings. Flat on purpose: `segment_max_seconds` is `MANIFOLD_SEGMENT_MAX_SECONDS`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("home", "jars")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        try:
            return path.expanduser().absolute()
        except RuntimeError:
            raise ValueError("must be a folder; nobody has the home that its ~ names") from None

    @field_validator("topic_prefix")
    @classmethod
    def _plain_prefix(cls, prefix: str) -> str:
        if not prefix or prefix.strip("/") != prefix or set(prefix) & set("+#"):
            raise ValueError("must be one or more topic levels without + and #, not beginning or ending with /")
        return prefix

    @field_validator("*", mode="before")
    @classmethod
    def _without_line_end(cls, value: object, info: ValidationInfo) -> object:
        """Strip the trailing newline of secrets from files."""
        field = cls.model_fields[str(info.field_name)]
        return value.rstrip("\r\n") if field.annotation is SecretStr and isinstance(value, str) else value

    @field_validator("ecq_pending_retention_days", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator(*FORMS)
    @classmethod
    def _of_form(cls, secret: SecretStr, info: ValidationInfo) -> SecretStr:
        form, rule = FORMS[str(info.field_name)]
        if not re.fullmatch(form, secret.get_secret_value()):
            raise ValueError(rule)
        return secret

    @field_validator(*SCHEMES)
    @classmethod
    def _url(cls, value: str | SecretStr, info: ValidationInfo) -> str | SecretStr:
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        check_url(text, SCHEMES[str(info.field_name)])
        return value

    @field_validator("catalog_uri")
    @classmethod
    def _uri(cls, uri: SecretStr) -> SecretStr:
        if uri.get_secret_value() and "://" not in uri.get_secret_value():
            raise ValueError("must be a URL, such as postgresql+psycopg://user:password@host/database or https://host/catalog")
        return uri

    @field_validator("spark_master")
    @classmethod
    def _no_token(cls, address: str) -> str:
        if "token=" in address:
            raise ValueError("a token is no part of it: set SPARK_CONNECT_AUTHENTICATE_TOKEN")
        return address

    @field_validator("lineage_parent")
    @classmethod
    def _parent(cls, text: str) -> str:
        return str(RunName.parse(text)) if text else ""

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
        """Order of precedence: arguments, environment by the settings' own names, then by aliases, then the file."""
        del dotenv_settings, file_secret_settings
        others = {setting: os.environ[name] for name, setting in OTHER_NAMES.items() if os.environ.get(name)}
        return (
            init_settings,
            env_settings,
            InitSettingsSource(settings_cls, others),
            TomlConfigSettingsSource(settings_cls, settings_file()),
        )


def settings_file(env: Mapping[str, str] = os.environ) -> Path:
    """Return the optional file: `MANIFOLD_FILE`, else `manifold.toml` in the working directory."""
    return Path(env.get(FILE_VARIABLE, DEFAULT_FILE))


def unknown_variables(env: Mapping[str, str] = os.environ) -> list[str]:
    """Return variables with the settings' prefix that are not settings, mostly typos."""
    known = {PREFIX + name.upper() for name in Settings.model_fields} | {FILE_VARIABLE, *FORMER_NAMES}
    return sorted(name for name in env if name.startswith(PREFIX) and name.upper() not in known)


def source_of(name: str, env: Mapping[str, str] = os.environ) -> str:
    """Return the source of a setting's value: the variable, the file, or `default`."""
    variable = PREFIX + name.upper()
    if any(key.upper() == variable for key in env):
        return variable
    for other, setting in OTHER_NAMES.items():
        if setting == name and env.get(other):
            return other
    file = settings_file(env)
    return str(file) if name in TomlConfigSettingsSource(Settings, file)() else "default"


def load_settings(**overrides: Any) -> Settings:
    """Load all settings from `overrides`, the environment and the file.

    Raises:
        SettingsError: settings are invalid; the message names all of them, with value and remedy.
    """
    unknown = [f"{name} is not a setting; `manifold settings` lists them all" for name in unknown_variables()]
    try:
        settings = Settings(**overrides)
    except ValidationError as exc:
        raise SettingsError("; ".join(unknown + [_problem(dict(error)) for error in exc.errors()])) from exc
    except ValueError as exc:  # the file is not valid TOML
        raise SettingsError(f"{settings_file()}: {exc}; correct the file") from exc
    if wrong := unknown + (plaintext_errors(settings) if settings.require_tls else []):
        raise SettingsError("; ".join(wrong))
    return settings


def _problem(error: dict[str, Any]) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{name} in {settings_file()} is not a setting; `manifold settings` lists them all"
    field = Settings.model_fields.get(name)
    hidden = "token=" in str(error["input"]) or (field is not None and field.annotation is SecretStr)
    shown = "***" if hidden else repr(error["input"])
    problem = f"{PREFIX}{name.upper()}={shown}: {error['msg'][0].lower()}{error['msg'][1:]}"
    return problem if field is None else f"{problem} ({field.description})"


__all__ = ["Settings", "load_settings", "settings_file", "source_of", "unknown_variables"]
