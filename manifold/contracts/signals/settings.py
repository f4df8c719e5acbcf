"""Settings for storing and processing signals; those of the door are in `manifold.settings`."""

from typing import Annotated

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings

from manifold.contracts.signals.bounds import DEFAULT_BOUNDS


class SignalStorageSettings(BaseSettings):
    """How signals are encrypted, judged and kept."""

    signals_keys: SecretStr = Field(
        default=SecretStr(""),
        description="key ring for signals at rest: <id>:<base64 of 32 bytes>, with commas between; the first wraps, all unwrap",
    )
    signals_keys_file: str = Field(
        default="", description="file with the same, one key a line, the first the current one; instead of signals_keys"
    )
    signals_bounds: str = Field(
        default=DEFAULT_BOUNDS, description="values of readings that are no anomalies: <type>=<least>..<most> <unit>, with commas"
    )
    signals_rotate_schedule: str = Field(
        default="29 2 * * 0", description="cron expression (UTC) of the DAG rotate_keys; empty: only when triggered"
    )
    signals_retention_days: Annotated[float, Field(ge=0, le=36_500)] = Field(
        default=0, description="how long signals stay in their tables, by the day on which they came; 0: for good"
    )
