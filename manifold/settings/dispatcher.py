"""Settings of the dispatchers."""

from typing import Annotated

from pydantic import Field, SecretStr

from manifold.settings.field import Port, Positive, Seconds, Secret
from manifold.settings.field import setting as _s
from manifold.settings.mqtt import MqttSettings
from manifold.settings.queues import QueueSettings


class DispatcherSettings(QueueSettings, MqttSettings):
    """How entries are delivered."""

    dispatcher_port: Port = _s(9110, "HTTP of the first dispatcher: /metrics, /healthz; each further replica takes the next port")
    dispatchers: Annotated[int, Field(ge=1, le=64)] = _s(
        1,
        "dispatcher processes: `make up` starts so many; elsewhere say how many run: events wait longer for one alone",
    )
    ack_deadline_seconds: Seconds = _s(30, "how long a vehicle has to acknowledge before the entry is published again")
    ack_deadline_max_seconds: Seconds = _s(600, "the deadline doubles with each attempt up to this")
    max_attempts: Annotated[int, Field(ge=0)] = _s(0, "publishes after which an entry has failed; 0: until its retention passes")
    dispatch_on_connect: bool = _s(False, "publish as soon as a vehicle connects, without waiting for its online or heartbeat")
    dispatch_on_subscribe: bool = _s(
        False, "publish as soon as a vehicle subscribes, without waiting for its online or heartbeat"
    )
    presence_seconds: Seconds = _s(
        180, "how long a vehicle that was heard counts as present, if it was not seen to connect or does not acknowledge"
    )
    publish_window: Positive = _s(500, "publishes of one dispatcher that the broker has not confirmed")
    publish_window_bytes: Positive = _s(16 << 20, "the same in bytes of payload; a single publish may be larger")
    payload_cache_bytes: Positive = _s(64 << 20, "payloads that one dispatcher keeps in memory")
    parked_retry_seconds: Seconds = _s(10, "how often parked entries are looked at again")
    emqx_api_url: Annotated[str, Field(pattern="^(https?://.+/api/v5/?)?$")] = _s(
        "",
        "EMQX's REST API, such as https://emqx:18084/api/v5: presence is compared with its sessions, and it bans revoked"
        " vehicles; empty: neither",
    )
    emqx_api_key: str = _s("", "key of EMQX's REST API; it reads sessions, and writes bans of revoked vehicles alone")
    emqx_api_secret: Secret = _s(SecretStr(""), "secret that belongs to emqx_api_key")
    reconcile_seconds: Seconds = _s(300, "how often presence is compared with EMQX's sessions")
