"""All settings in one frozen object, read once at startup: environment `MANIFOLD_<NAME>`, then one optional file.

Each service has a file with its settings, their checks and the values derived from them; `joined` has the class of them all.
"""

import os
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_settings import TomlConfigSettingsSource

from manifold.contracts.errors import SettingsError
from manifold.settings.joined import DEFAULT_FILE, FILE_VARIABLE, FORMER_NAMES, OTHER_NAMES, PREFIX, Settings, settings_file
from manifold.settings.plaintext_endpoints import plaintext_errors


def unknown_variables(env: Mapping[str, str] = os.environ) -> list[str]:
    """Return the environment variables that have the settings' prefix but are no settings; mostly typos."""
    known = {PREFIX + name.upper() for name in Settings.model_fields} | {FILE_VARIABLE, *FORMER_NAMES}
    return sorted(name for name in env if name.startswith(PREFIX) and name.upper() not in known)


def source_of(name: str, env: Mapping[str, str] = os.environ) -> str:
    """Return the source of a setting's value: the name of its variable or alias, the path of the file, or `default`."""
    variable = PREFIX + name.upper()
    if any(key.upper() == variable for key in env):
        return variable
    for alias, setting in OTHER_NAMES.items():
        if setting == name and env.get(alias):
            return alias
    file = settings_file(env)
    settings_in_file = TomlConfigSettingsSource(Settings, file)()
    return str(file) if name in settings_in_file else "default"


def load_settings(**overrides: Any) -> Settings:
    """Load all settings from `overrides`, the environment and the file.

    Raises:
        SettingsError: settings are invalid; the message names all of them, with value and remedy.
    """
    unknown = [f"{name} is not a setting; `manifold settings` lists them all" for name in unknown_variables()]
    try:
        settings = Settings(**overrides)
    except ValidationError as exc:
        invalid = [_problem(dict(error)) for error in exc.errors()]
        raise SettingsError("; ".join(unknown + invalid)) from exc
    except ValueError as exc:  # the file is not valid TOML
        raise SettingsError(f"{settings_file()}: {exc}; correct the file") from exc
    plaintext = plaintext_errors(settings) if settings.require_tls else []
    problems = unknown + plaintext
    if problems:
        raise SettingsError("; ".join(problems))
    return settings


def _problem(error: dict[str, Any]) -> str:
    """Return the message for one of pydantic's errors: setting, value unless it is secret, problem, and the setting's meaning."""
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{name} in {settings_file()} is not a setting; `manifold settings` lists them all"
    field = Settings.model_fields.get(name)
    contains_token = "token=" in str(error["input"])  # an address of Spark may contain one
    is_secret = field is not None and field.annotation is SecretStr
    value = "***" if contains_token or is_secret else repr(error["input"])
    message = error["msg"]
    problem = f"{PREFIX}{name.upper()}={value}: {message[0].lower()}{message[1:]}"
    return problem if field is None else f"{problem} ({field.description})"


__all__ = [
    "DEFAULT_FILE",
    "FILE_VARIABLE",
    "FORMER_NAMES",
    "PREFIX",
    "Settings",
    "load_settings",
    "settings_file",
    "source_of",
    "unknown_variables",
]
