"""Settings of delivery, by group: default, bounds and meaning of each; `manifold.settings` joins all into one class."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings

from manifold.contracts.topics import RECEIPT_PREFIX
from manifold.settings.field import Days, DaysOrNone, NodeNumber, Port, Positive, Seconds, SecondsOrNone
from manifold.settings.field import setting as _s


class EndpointSettings(BaseSettings):
    """Folders, addresses and ports."""

    home: Path = _s(Path(".manifold"), "folder of all local state: data of the servers, logs, archive, lake")
    host: str = _s(
        "127.0.0.1",
        "address on which the services' HTTP and the embedded front door listen; what only they use stays on loopback",
    )
    http_token: SecretStr = _s(
        SecretStr(""), "bearer token that the services' HTTP asks for; without one it listens on loopback only"
    )
    mqtt_port: Port = _s(1883, "the front door for vehicles and platform: the event tap when embedded, EMQX when deployed")
    broker_port: Port = _s(18830, "the embedded Mosquitto behind the tap")
    redis_port: Port = _s(6390, "the embedded Redis")
    airflow_port: Port = _s(8080, "the embedded Airflow")
    with_airflow: bool = _s(True, "`make up` starts Airflow; off: for quick trials, nothing is scheduled")
    recorder_port: Port = _s(9101, "HTTP of the recorder: /metrics, /healthz, /flush, /journal")
    tap_port: Port = _s(9102, "HTTP of the event tap: /metrics, /healthz")
    stream_port: Port = _s(9103, "HTTP of `manifold stream`: /metrics")
    api_host: str = _s("", "address on which the API listens; empty: as host says")
    api_port: Port = _s(9104, "HTTP of the API: /api/v1, /metrics, /healthz")
    api_url: Annotated[str, Field(pattern=r"^(https?://[^\s,]+)?$")] = _s(
        "", "where the console and Airflow's page find the API; empty: http(s)://<api_host>:<api_port>"
    )
    api_tokens_file: str = _s(
        "",
        "file of the API's named tokens, a line each: <name>:<SHA-256 of the token>:<rights>; rights: read, propose, approve,"
        " brake, delegate, rewind, with commas between; read again when it changes; empty: <home>/secrets/api_tokens, which"
        " `make up` makes for Airflow; without that file nobody orders campaigns over HTTP",
    )
    api_token: SecretStr = _s(
        SecretStr(""),
        "the named token that jobs of Airflow show the API for its users, with the rights read, approve, brake, delegate; empty:"
        " the one that `make up` generates, where api_tokens_file is empty too",
    )
    api_timeout_seconds: Seconds = _s(20.0, "how long the API reads lake and archive for one answer")
    dispatcher_port: Port = _s(9110, "HTTP of the first dispatcher: /metrics, /healthz; each further replica takes the next port")
    with_signals: bool = _s(
        True, "`make up` starts the AMQP door, and RabbitMQ where signals_amqp_url names none; off: neither of them"
    )
    amqp_port: Annotated[int, Field(ge=1, le=65533)] = _s(
        5680, "the embedded RabbitMQ; its own epmd and Erlang's distribution take the two ports after it"
    )
    signals_port: Port = _s(9105, "HTTP of the AMQP door: /metrics, /healthz, /flush")
    with_campaigns: bool = _s(True, "`make up` starts the campaigner, which carries out campaigns; off: it does not")
    campaigner_port: Port = _s(9106, "HTTP of the campaigner: /metrics, /healthz")
    mqtt_url: str = _s("", "where services find the broker; empty: mqtt://<host>:<mqtt_port>")
    mqtt_vehicle_url: str = _s(
        "",
        "where vehicles find the broker, as `status` tells it; empty: mqtt_url, with 1883 where that has the services' port 1884",
    )
    redis_url: SecretStr = _s(
        SecretStr(""),
        "where services find Redis; redis+cluster:// and any node: a Redis Cluster; empty: redis://<host>:<redis_port>/0",
    )
    recorder_urls: Annotated[str, Field(pattern=r"^(https?://[^\s,]+(,https?://[^\s,]+)*)?$")] = _s(
        "", "HTTP of every recorder where several run, with commas between; empty: the one at http://<host>:<recorder_port>"
    )
    archive_url: str = _s("", "root of the archive, file:// or s3://; empty: <home>/archive")
    log_format: Annotated[str, Field(pattern="^(text|json)$")] = _s(
        "text", "how services write their log: text (key=value) or json"
    )
    log_level: Annotated[str, Field(pattern="^(debug|info|warning|error)$")] = _s(
        "info", "the least important log lines of recorder and dispatchers; debug: a line for every claim and acknowledgement"
    )


class MqttSettings(BaseSettings):
    """How services connect to the broker."""

    mqtt_username_recorder: str = _s("sdv-recorder", "user name of the recorder")
    mqtt_username_dispatcher: str = _s("sdv-dispatcher", "user name of the dispatchers")
    mqtt_username_publisher: str = _s("sdv-pub-console", "user name of `manifold send` and of the demo's platform")
    mqtt_username_campaigns: str = _s(
        "sdv-campaigns", "user name of console and campaigner where they publish orders to campaigns"
    )
    mqtt_username_api: str = _s("sdv-api", "user name of the API, which publishes orders to campaigns, and rewinds")
    mqtt_password: SecretStr = _s(SecretStr(""), "password of the services; empty: none is sent")
    mqtt_probe_username: str = _s(
        "", "client id and user name of the vehicle that `manifold doctor` plays; empty: one of chance, without a password"
    )
    mqtt_probe_password: SecretStr = _s(SecretStr(""), "password that belongs to mqtt_probe_username")
    mqtt_receive_maximum: Annotated[int, Field(gt=0, le=65535)] = _s(
        1000, "unacknowledged messages that a service lets the broker send"
    )
    mqtt_session_expiry_seconds: Annotated[int, Field(gt=0, le=(1 << 32) - 1)] = _s(
        3600, "how long the broker keeps a service's session while the service is away"
    )
    mqtt_shared: Annotated[str, Field(pattern="^(auto|on|off)$")] = _s(
        "auto",
        "shared subscriptions, for several replicas; auto: only where mqtt_url is set, because Mosquitto 2.0 shares no $ topics",
    )
    topic_prefix: str = _s("agent", "first levels of the topic on which vehicles get their messages")


class RecorderSettings(BaseSettings):
    """What the recorder accepts, and how it records."""

    node: NodeNumber = _s(0, "number of this recorder in every seq; each recorder needs its own")
    node_lease_seconds: Seconds = _s(
        86400, "how long a recorder that can tell neither archive nor Redis so keeps its number, and no other journal may take it"
    )
    max_ids: Positive = _s(1_000_000, "VINs that one trigger may name")
    max_data_bytes: Positive = _s(1 << 20, "bytes that one data message may hold")
    max_trigger_bytes: Positive = _s(96 << 20, "bytes that one trigger message may hold")
    dedupe_window_seconds: SecondsOrNone = _s(
        900, "how long the same trigger again is a duplicate and not a new batch; 0: it is always a new one"
    )
    inline_encoding: Annotated[str, Field(pattern="^(base64|text)$")] = _s(
        "base64", "what `data` in a trigger is: base64 of the bytes, or text that goes out as it stands, in UTF-8"
    )
    intake_window_bytes: Positive = _s(
        256 << 20, "bytes of messages that the recorder takes before it has settled earlier ones; a single message may be larger"
    )
    ecq_rewinds_per_hour: Annotated[int, Field(ge=0)] = _s(
        60, "rewinds of one compacted queue that are taken in an hour, up to ten of them at once; 0: any number"
    )
    campaign_answers: bool = _s(
        True, "the recorder reads what vehicles answer to campaigns; off: for a fleet whose responses are never answers"
    )
    campaign_answers_per_hour: Annotated[int, Field(ge=0)] = _s(
        60, "answers of one vehicle that are taken in an hour, up to ten of them at once; 0: any number"
    )
    receipt_prefix: str = _s(
        RECEIPT_PREFIX, "response topics must begin so; elsewhere the recorder could be made to write to a vehicle"
    )
    direct_enqueue: bool = _s(True, "hand accepted batches to the queues at once; off: only the pipelines populate")
    segment_max_seconds: Seconds = _s(30, "a segment is closed when it is this old")
    segment_max_bytes: Positive = _s(64 << 20, "a segment is closed when its journal has this many bytes")
    journal_retry_seconds: Seconds = _s(1, "pause before the next try when the disk is full or the archive unwritable")
    outcome_batch: Positive = _s(1000, "outcomes that the recorder takes from Redis at once")


class CampaignSettings(BaseSettings):
    """How campaigns are carried out."""

    campaigner_lease_seconds: Annotated[float, Field(ge=3, le=3600)] = _s(
        15, "how long after the death of the active campaigner another one waits before it takes over"
    )
    campaigns_open: Positive = _s(
        200, "campaigns that are carried out at once; later ones wait until one of those proposed before them is over"
    )


class QueueSettings(BaseSettings):
    """How entries wait."""

    retention_days: Days = _s(30, "how long an entry may stay pending, and how long data is kept after it was last seen")
    compaction: Annotated[str, Field(pattern="^(off|request_id)$")] = _s(
        "off", "request_id: a newer trigger replaces an older pending one of it"
    )
    ecq_retention_days: Days = _s(
        30,
        "how long a message of a compacted queue is kept, acknowledged or not, unless a newer one takes its place",
    )
    ecq_pending_retention_days: DaysOrNone | None = _s(
        None,
        "how long a message of a compacted queue may stay pending before it expires; 0: until it is fetched;"
        " empty: as long as ecq_retention_days",
    )
    wake_shards: Annotated[int, Field(ge=1, le=256)] = _s(
        4, "streams over which wake-ups and deadlines are spread; the same for every process"
    )


class DispatchSettings(BaseSettings):
    """How entries are delivered."""

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
    emqx_api_secret: SecretStr = _s(SecretStr(""), "secret that belongs to emqx_api_key")
    reconcile_seconds: Seconds = _s(300, "how often presence is compared with EMQX's sessions")
