"""Settings of the AMQP door and of signals at rest, and the names of some of them in the vehicle platform's contract."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr, field_validator

from manifold.contracts.signals.bounds import DEFAULT_BOUNDS, read_bounds
from manifold.contracts.signals.messages import MAX_PAYLOAD
from manifold.contracts.signals.topology import MAX_PARTITIONS
from manifold.settings.field import AmqpUrl, DaysOrNone, NodeNumber, Port, RedisUrl, Seconds, Secret
from manifold.settings.field import setting as _s
from manifold.settings.shared import SharedSettings

PLACEHOLDERS = ("your-", "your_", "default-", "default_", "change-me", "changeme", "change_me", "placeholder", "<")

# The contract's variable names, and the settings for which they are used if the setting's own variable is not set.
CONTRACT_NAMES = {
    "RABBITMQ_URI": "signals_amqp_url",
    "RABBITMQ_PREFETCH": "signals_prefetch",
    "RABBITMQ_HEARTBEAT": "signals_heartbeat_seconds",
    "RABBITMQ_CONNECTION_TIMEOUT": "signals_connect_ms",
    "REDIS_URI": "signals_redis_url",
    "IDEMP_TTL_SEC": "signals_idempotency_seconds",
    "HMAC_SECRET_KEY": "signals_hmac_secret",
    "HMAC_TIMESTAMP_TOLERANCE": "signals_tolerance_seconds",
    "HMAC_NONCE_TTL": "signals_nonce_seconds",
}


def _require_bounds(text: str) -> str:
    read_bounds(text)  # raises ValueError if the text is invalid
    return text


class SignalSettings(SharedSettings):
    """What the AMQP door accepts, which certificates it trusts, and how signals are encrypted, judged and kept."""

    signals_port: Port = _s(9105, "HTTP of the AMQP door: /metrics, /healthz, /flush")
    signals_node: NodeNumber = _s(1000, "number of this AMQP door in every seq; each door, and each recorder, needs its own")
    signals_amqp_url: AmqpUrl = _s(
        SecretStr(""), "where the door finds RabbitMQ; empty: the embedded one, with the password in <home>/secrets"
    )
    amqp_port: Annotated[int, Field(ge=1, le=65533)] = _s(
        5680, "the embedded RabbitMQ; its own epmd and Erlang's distribution take the two ports after it"
    )
    signals_operator_url: AmqpUrl = _s(
        SecretStr(""), "the same for whoever looks at dead letters, who is another user; empty: as signals_amqp_url says"
    )
    signals_redis_url: RedisUrl = _s(SecretStr(""), "where the door keeps nonces and idempotency keys; empty: as redis_url says")
    signals_prefetch: Annotated[int, Field(ge=1, le=65535)] = _s(50, "messages of a queue that the door has in hand at most")
    signals_partitions: Annotated[int, Field(ge=0, le=MAX_PARTITIONS)] = _s(
        0, "partitions of the raw queue, by x-device-id, each read by one door at a time; the same for all doors; 0: none"
    )
    signals_heartbeat_seconds: Annotated[int, Field(ge=1, le=3600)] = _s(30, "AMQP heartbeat")
    signals_confirm_seconds: Seconds = _s(
        60, "a RabbitMQ that confirms nothing for so long, and does not say that it is short of memory or disk, is left"
    )
    signals_connect_ms: Annotated[int, Field(ge=1)] = _s(5000, "milliseconds that a connection to RabbitMQ may take")
    signals_hmac_secret: Secret = _s(
        SecretStr(""),
        "secret with which gateways sign; set, or in <home>/secrets: every message must be signed; neither: none is asked",
    )
    signals_hmac_accepted: Secret = _s(
        SecretStr(""), "former secrets that are still accepted, a JSON array of strings; for a change without a gap"
    )
    signals_tolerance_seconds: Annotated[float, Field(gt=0, le=3600)] = _s(
        300, "how far a signed timestamp may be from now; how long the queue was backed up is added"
    )
    signals_nonce_seconds: Annotated[int, Field(ge=60, le=86_400)] = _s(
        3600, "how long a nonce is remembered, at least; no message may be older"
    )
    signals_idempotency_seconds: Annotated[int, Field(ge=1, le=86_400)] = _s(
        900, "how long the same signal again is a duplicate at once"
    )
    signals_max_payload: Annotated[int, Field(ge=4, le=MAX_PAYLOAD)] = _s(
        MAX_PAYLOAD, "characters of base64 that one payload may have; the contract allows no more"
    )
    signals_max_retries: Annotated[int, Field(ge=0, le=20)] = _s(3, "tries after the first, of what may work later")
    signals_log_accepted: Annotated[float, Field(ge=0, le=1)] = _s(
        1.0, "share of the accepted messages that have a log line, from 0 to 1; refused and retried messages always have one"
    )
    signals_traces_url: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = _s(
        "", "OTLP/HTTP collector of the door's spans, such as http://127.0.0.1:4318/v1/traces; empty: there are no spans"
    )
    signals_reads_status: bool = _s(True, "the door also records what gateways publish to device.status.v1")
    signals_keys: Secret = _s(
        SecretStr(""),
        "key ring for signals at rest: <id>:<base64 of 32 bytes>, with commas between; the first wraps, all unwrap",
    )
    signals_keys_file: str = _s("", "file with the same, one key a line, the first the current one; instead of signals_keys")
    signals_bounds: Annotated[str, AfterValidator(_require_bounds)] = _s(
        DEFAULT_BOUNDS, "values of readings that are not anomalies: <type>=<least>..<most> <unit>, with commas"
    )
    signals_rotate_schedule: str = _s("29 2 * * 0", "cron expression (UTC) of the DAG rotate_keys; empty: only when triggered")
    signals_retention_days: DaysOrNone = _s(
        0, "how long signals stay in their tables, by the day on which they came; 0: for good"
    )

    @field_validator("signals_hmac_secret", "signals_hmac_accepted")
    @classmethod
    def _refuse_placeholders(cls, secret: SecretStr) -> SecretStr:
        text = secret.get_secret_value()
        values = parse_accepted_secrets(text) if text.startswith("[") else [text]  # signals_hmac_accepted is a JSON array
        for value in values:
            if value.lower().startswith(PLACEHOLDERS) or value.lower() in ("secret", "password", "test"):
                raise ValueError("is a placeholder and no secret; make one up: openssl rand -hex 32")
        return secret

    @field_validator("signals_hmac_accepted")
    @classmethod
    def _require_array(cls, secrets: SecretStr) -> SecretStr:
        parse_accepted_secrets(secrets.get_secret_value())  # raises ValueError if it is not an array
        return secrets

    @property
    def signals_redis(self) -> str:
        """URL of the AMQP door's Redis, including the password."""
        return self.signals_redis_url.get_secret_value() or self.redis

    @property
    def signals(self) -> str:
        """Base URL of the AMQP door's HTTP."""
        return self.http(self.signals_port)

    @property
    def signals_journal_folder(self) -> Path:
        """Folder of the AMQP door's journal; always on a local disk."""
        return self.home / "journal" / str(self.signals_node)


def parse_accepted_secrets(text: str) -> list[str]:
    """Parse the value of signals_hmac_accepted; an empty text means no secrets.

    Raises:
        ValueError: it is not a JSON array of non-empty strings.
    """
    try:
        secrets = json.loads(text or "[]")
    except (ValueError, RecursionError):
        secrets = None  # refused below
    if not isinstance(secrets, list) or not all(isinstance(secret, str) and secret for secret in secrets):
        raise ValueError('must be a JSON array of strings that are not empty, such as ["…", "…"]')
    return secrets
