"""Settings of the recorder, and of its journal and segments."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from manifold.contracts.topics import RECEIPT_PREFIX
from manifold.settings.field import NodeNumber, Port, Positive, Seconds, SecondsOrNone
from manifold.settings.field import setting as _s
from manifold.settings.mqtt import MqttSettings

TOPIC_AND_PROPERTIES_BYTES = 1 << 20  # part of a packet that is not payload; more than any publisher needs
MAX_MQTT_PACKET_BYTES = (1 << 28) - 1  # the protocol's limit


class RecorderSettings(MqttSettings):
    """What the recorder accepts, and how it records."""

    recorder_port: Port = _s(9101, "HTTP of the recorder: /metrics, /healthz, /flush, /journal")
    recorder_urls: Annotated[str, Field(pattern=r"^(https?://[^\s,]+(,https?://[^\s,]+)*)?$")] = _s(
        "", "HTTP of every recorder where several run, with commas between; empty: the one at http://<host>:<recorder_port>"
    )
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

    @property
    def recorders(self) -> list[str]:
        """Base URL of each recorder's HTTP; never empty."""
        urls = self.recorder_urls or self.http(self.recorder_port)
        return [url.rstrip("/") for url in urls.split(",")]

    @property
    def journal_folder(self) -> Path:
        """Folder of the recorder's journal; always on a local disk."""
        return self.home / "journal" / str(self.node)

    @property
    def largest_packet(self) -> int:
        """Maximum size in bytes of a publisher's MQTT packet: a trigger or data, plus topic and properties."""
        largest_payload = max(self.max_trigger_bytes, self.max_data_bytes)
        return min(largest_payload + TOPIC_AND_PROPERTIES_BYTES, MAX_MQTT_PACKET_BYTES)
