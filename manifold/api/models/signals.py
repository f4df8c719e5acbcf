"""Response models for the signals of a device."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from manifold.api.models.fields import Seq, example
from manifold.history.signals import DeviceSignals

SIGNAL: dict[str, Any] = {
    "captured_at": "2026-11-21T13:42:08.100Z",
    "received_at": "2026-11-21T13:42:09.249Z",
    "seq": 911974771715997696,
    "correlation_id": "550e8400-e29b-41d4-a716-446655440000",
    "readings": [{"type": "temperature", "value": 99.0, "unit": "celsius"}],
    "anomalies": [{"type": "temperature_high", "severity": "low", "description": "temperature 99 celsius is above 85"}],
    "problem": None,
}


class Reading(BaseModel):
    """One value that a signal says."""

    model_config = example(type="temperature", value=99.0, unit="celsius", confidence=0.9, name=None)

    type: str = Field(description="`temperature`, `humidity`, …")
    value: float = Field(description="in `unit`")
    unit: str = Field(description="of the value, such as `celsius`")
    confidence: float | None = Field(None, description="0 to 1")
    name: str | None = Field(None, description="of readings that are computed of a track: which")


class Anomaly(BaseModel):
    """A value of a signal that is not as it should be."""

    model_config = example(type="temperature_high", severity="low", description="temperature 99 celsius is above 85")

    type: str = Field(description="`temperature_high`, …")
    severity: str = Field(description="`low`, `medium`, `high`, or `critical`")
    description: str = Field(description="the anomaly as a sentence")


class Signal(BaseModel):
    """One signal, and what processing has made of it."""

    model_config = example(**SIGNAL)

    captured_at: datetime = Field(description="when the device took it, as it says")
    received_at: datetime = Field(description="when it was accepted")
    seq: Seq
    correlation_id: str | None = Field(description="the UUID under which the message was sent")
    readings: list[Reading]
    anomalies: list[Anomaly]
    problem: str | None = Field(description="why its payload could not be read; null: it was")


class Signals(BaseModel):
    """A page of a device's signals, oldest first."""

    model_config = example(device_id="device-123", signals=[SIGNAL], before=None)

    device_id: str = Field(description="the device")
    signals: list[Signal]
    before: Seq | None = Field(description="the next page has what came before this seq; null: there is nothing more")

    @classmethod
    def of(cls, page: DeviceSignals) -> "Signals":
        """Build the response model of a page of signals."""
        signals = [Signal(**signal.to_json() | {"problem": signal.problem}) for signal in page.signals]
        return cls(device_id=page.device_id, signals=signals, before=page.before)
