"""All settings in one class. A service reads those of its own file; the console and the sandbox read all."""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from manifold.settings.api import ApiSettings
from manifold.settings.campaigner import CampaignerSettings
from manifold.settings.dispatcher import DispatcherSettings
from manifold.settings.pipelines import PipelineSettings
from manifold.settings.recorder import RecorderSettings
from manifold.settings.sandbox import SandboxSettings
from manifold.settings.signals import CONTRACT_NAMES, SignalSettings

PREFIX = "MANIFOLD_"
FILE_VARIABLE = "MANIFOLD_FILE"
DEFAULT_FILE = "manifold.toml"
FORMER_NAMES = {"MANIFOLD_EXPRESS": "direct_enqueue"}  # variables of earlier versions
OTHER_NAMES = CONTRACT_NAMES | FORMER_NAMES  # aliases and their settings, used if the setting's own variable is not set


class Settings(
    SandboxSettings, PipelineSettings, SignalSettings, ApiSettings, CampaignerSettings, DispatcherSettings, RecorderSettings
):
    """All of Manifold's settings. Flat on purpose: `segment_max_seconds` is `MANIFOLD_SEGMENT_MAX_SECONDS`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources in the order of precedence: arguments, the settings' own variables, their aliases, the file."""
        del dotenv_settings, file_secret_settings  # not used, but part of the interface of pydantic
        from_aliases = {setting: os.environ[alias] for alias, setting in OTHER_NAMES.items() if os.environ.get(alias)}
        return (
            init_settings,
            env_settings,
            InitSettingsSource(settings_cls, from_aliases),
            TomlConfigSettingsSource(settings_cls, settings_file()),
        )


def settings_file(env: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the optional file: the variable `MANIFOLD_FILE`, or `manifold.toml` in the working directory."""
    return Path(env.get(FILE_VARIABLE, DEFAULT_FILE))
