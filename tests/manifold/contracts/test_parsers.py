"""Every pure parser: any bytes give a value or the declared refusal, and the same each time."""

import json
from codecs import BOM_UTF8
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifold.archive.content import Unreadable
from manifold.archive.formats import decode
from manifold.campaigns.parsing import parse_plan
from manifold.contracts import campaigns
from manifold.contracts.answers import parse_answer
from manifold.contracts.ecq import EcqAck, parse_ecq
from manifold.contracts.messages import parse_trigger
from manifold.contracts.outcomes import OutcomeRecord
from manifold.contracts.signals.bounds import DEFAULT_BOUNDS, read_bounds
from manifold.contracts.signals.messages import parse_raw, parse_status
from manifold.contracts.signals.processing import process
from tests.manifold.campaigns.plans import document

FIELDS = [
    "ids",
    "request_id",
    "data_id",
    "data",
    "campaign",
    "do",
    "by",
    "why",
    "token",
    "vin",
    "seq",
    "outcome",
    "ended_ms",
    "dispatched_ms",
    "attempts",
    "reason",
    "client_id",
    "acked_ms",
    "epoch",
    "deviceId",
    "capturedAt",
    "payload",
    "schemaVersion",
    "metadata",
    "location",
    "battery",
    "status",
    "lastSeen",
    "health",
    "targets",
    "ends",
    "waves",
    "size",
    "rate",
    "window",
    "from",
    "to",
    "rules",
    "topic",
    "received_at",
    "headers",
    "pub_props",
    "payload_base64",
]
WORDS = ("V1", "cancel", "targets", "delivered", "online", "v1", "2026-01-31T08:00:00Z", "1%", "rest", "\ud800", "e30=", "t")
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 80), 1 << 80)
    | st.floats()
    | st.text()
    | st.sampled_from(WORDS)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6),
    max_leaves=12,
)
PARSERS: dict[str, tuple[Callable[[bytes], object], tuple[type[Exception], ...]]] = {
    "a record of a campaign": (campaigns.decode, ()),
    "a plan": (parse_plan, ()),
    "an acknowledgement": (EcqAck.from_wire, (ValueError,)),
    "an outcome": (OutcomeRecord.from_wire, (ValueError,)),
    "a signal": (parse_raw, ()),
    "a device": (parse_status, ()),
    "a write": (lambda payload: parse_ecq("$ECQ/w/C1/" + payload.decode("latin-1"), payload, max_data_bytes=99), ()),
    "a rewind": (lambda payload: parse_ecq("$ECQ/r/C1", payload, max_data_bytes=99), ()),
    "lines": (lambda payload: decode("trigger/x.jsonl", payload).messages.to_pylist(), (Unreadable,)),
    "Parquet": (lambda payload: decode("trigger/x.parquet", payload).messages.to_pylist(), (Unreadable,)),
}


FROM_OTHERS: dict[str, Callable[[bytes], object]] = {
    "a record of a campaign": campaigns.decode,
    "a plan": parse_plan,
    "a trigger": lambda payload: parse_trigger(payload, max_ids=9, max_data_bytes=99),
    "an answer": lambda payload: parse_answer("agent/V1/proxy/response/r", payload),
    "a signal": parse_raw,
    "a signal's payload": lambda payload: process(payload, read_bounds(DEFAULT_BOUNDS)),
    "a device": parse_status,
    "an outcome": OutcomeRecord.from_wire,
}
VALID = {
    "a record of a campaign": {"do": "pause", "campaign": "maps", "by": "anna"},
    "a plan": document(),
    "a trigger": {"ids": ["V1"], "request_id": "r", "data_id": "d"},
    "an answer": {"seq": 7, "status": "done"},
    "a signal": {"deviceId": "d", "capturedAt": "2024-01-01T00:00:00Z", "payload": "YQ==", "schemaVersion": "v1"},
    "a signal's payload": {"readings": [{"type": "temperature", "value": 1, "unit": "C"}]},
    "a device": {"deviceId": "d", "status": "online", "lastSeen": "2024-01-01T00:00:00Z"},
    "an outcome": {"vin": "V1", "seq": 7, "outcome": "delivered", "ended_ms": 8},
}


@pytest.mark.parametrize("name", FROM_OTHERS)
def test_a_byte_order_mark_before_json_changes_nothing(name: str) -> None:
    parse, payload = FROM_OTHERS[name], json.dumps(VALID[name]).encode()

    assert "Refus" not in repr(parse(payload))
    assert repr(parse(BOM_UTF8 + payload)) == repr(parse(payload))


@pytest.mark.parametrize("name", PARSERS)
@settings(deadline=None)
@given(payload=st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_read_or_refused_and_twice_the_same(name: str, payload: bytes) -> None:
    parse, refusals = PARSERS[name]

    def told() -> str:
        try:
            return repr(parse(payload))
        except refusals as exc:
            return str(exc)

    assert told() == told()
