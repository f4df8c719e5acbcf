"""Triggers and data: any bytes give a message or a reason."""

import base64
import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manifold.contracts.messages import (
    MAX_PARTS,
    Data,
    Refused,
    ReleasedBy,
    Trigger,
    parse_data,
    parse_trigger,
    sha1_hex,
    trigger_digest,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["ids", "request_id", "data_id", "data", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


def parse(fields: Any, **limits: Any) -> Trigger | Refused:
    payload = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return parse_trigger(payload, **{"max_ids": 1000, "max_data_bytes": 1 << 20, **limits})


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b"\xff\xfe")
@example(b'{"ids":["A"],"request_id":"r","data_id":NaN}')
def test_parsing_never_raises(payload: bytes) -> None:
    assert isinstance(parse(payload), Trigger | Refused)
    assert isinstance(parse_data(payload.decode("latin-1"), payload, max_data_bytes=10), Data | Refused)


GOOD = {"ids": ["V1", "V2"], "request_id": "task_ota_1", "data_id": "d1"}
FIELDS = ("ids", "ids[0]", "request_id", "data_id", "data", "of nobody", "the whole")


@given(
    depth=st.integers(0, 1200) | st.integers(960, 1000),
    field=st.sampled_from(FIELDS),
    width=st.sampled_from([1, 40]),
    around=st.sampled_from([("[", "]"), ('{"k":', "}"), ('{"k":["x",', "]}")]),
)
@example(depth=992, field="ids[0]", width=1, around=("[", "]"))
@example(depth=993, field="request_id", width=1, around=("[", "]"))
def test_no_nesting_depth_in_any_field_does_harm(depth: int, field: str, width: int, around: tuple[str, str]) -> None:
    payload = payload_with(field, ",".join([around[0] * depth + "0" + around[1] * depth] * width))
    refused_or_trigger = parse(payload)

    if isinstance(refused_or_trigger, Refused):
        assert len(refused_or_trigger.reason) < 1000
    else:
        assert field == "of nobody"
        assert payload.count(b"[") + payload.count(b"{") <= MAX_PARTS


def payload_with(field: str, value: str) -> bytes:
    """A trigger in which one field has this JSON value."""
    if field == "the whole":
        return f"[{value}]".encode()
    fields = {"ids": '["V1"]', "request_id": '"r"', "data_id": '"d"'}
    fields[field.removesuffix("[0]")] = f"[{value}]"
    return ("{" + ",".join(f'"{name}": {json_}' for name, json_ in fields.items()) + "}").encode()


def test_acceptance_of_a_trigger_does_not_depend_on_the_stack_depth() -> None:
    nested = {**GOOD, "of nobody": json.loads("[" * 90 + "]" * 90)}
    too_many = {**GOOD, "of nobody": [[] for _ in range(MAX_PARTS)]}

    def stand_on(frames: int, fields: Any) -> Trigger | Refused:
        return parse(fields) if frames == 0 else stand_on(frames - 1, fields)

    for frames in (0, 400, 700):
        assert isinstance(stand_on(frames, nested), Trigger)
        assert isinstance(stand_on(frames, too_many), Refused)


def test_a_vin_of_brackets_is_not_a_list() -> None:
    ids = [f'[{{"{n}"'.replace('"', "'") for n in range(200)]

    assert isinstance(parse({**GOOD, "ids": ids}), Trigger)


@pytest.mark.parametrize("text", ['"' + '\\"' * 20_000 + "[" * 101, '"' * 40_001 + "[" * 101, "[" * 101 + '"' + "\\" * 40_001])
def test_a_string_without_an_end_is_refused_at_once(text: str) -> None:
    began = time.monotonic()

    assert isinstance(parse(text.encode()), Refused)
    assert time.monotonic() - began < 2, "the time is proportional to the length"


def test_values_quoted_in_a_reason_are_truncated() -> None:
    long = "x" * 100_000
    for fields in (
        {**GOOD, "ids": [[0] * 100_000]},
        {**GOOD, "ids": [long]},
        {**GOOD, "request_id": {long: long}},
        {**GOOD, "request_id": int("9" * 4000)},
        {**GOOD, "data_id": "\U0001f600" * 1000},
        {"ids": ["V1"], "request_id": "r", "data": "", "data_id": [[long]]},
        {"ids": ["V1"], "request_id": "r", "data": "", "data_id": long},
    ):
        refused = parse(fields)
        assert isinstance(refused, Refused)
        assert len(refused.reason) < 1000


def test_a_trigger_names_its_vins_once_and_in_order() -> None:
    assert parse({**GOOD, "ids": ["V2", "V1", "V2"]}) == Trigger(("V2", "V1"), "task_ota_1", "d1")  # type: ignore[arg-type]


def test_an_inline_trigger_has_the_sha1_of_its_data_as_data_id() -> None:
    data = b"\x00\x01firmware"
    trigger = parse({"ids": ["V1"], "request_id": "r", "data": base64.b64encode(data).decode()})

    assert trigger == Trigger(("V1",), "r", sha1_hex(data), data)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param(b"not json", "payload is not JSON", id="not JSON"),
        pytest.param(b"[]", "payload is a JSON list", id="not an object"),
        pytest.param({**GOOD, "ids": None}, "ids is missing", id="no ids"),
        pytest.param({**GOOD, "ids": "V1"}, "ids is a string", id="ids is not a list"),
        pytest.param({**GOOD, "ids": []}, "ids is empty", id="empty ids"),
        pytest.param({**GOOD, "ids": ["V1", 7]}, "ids[1] is a number (7)", id="a number among the VINs"),
        pytest.param({**GOOD, "ids": ["V1", "V 2"]}, 'ids[1] "V 2" must be', id="a space in a VIN"),
        pytest.param({**GOOD, "ids": ["V+"]}, 'ids[0] "V+" must be', id="a wildcard in a VIN"),
        pytest.param({**GOOD, "ids": ["V" * 65]}, "ids[0]", id="a VIN of 65 characters"),
        pytest.param({**GOOD, "ids": ["V\n"]}, "ids[0]", id="a line feed after a VIN"),
        pytest.param({**GOOD, "ids": ["É"]}, "ids[0]", id="a VIN that is not ASCII"),
        pytest.param({**GOOD, "request_id": None}, "request_id is missing", id="no request_id"),
        pytest.param({**GOOD, "request_id": 5}, "request_id is a number (5)", id="a number as request_id"),
        pytest.param({**GOOD, "request_id": [1, 2]}, "request_id is a list (2 items)", id="a list as request_id"),
        pytest.param({**GOOD, "ids": [{"vin": "V1"}]}, "ids[0] is a object (1 item)", id="an object among the VINs"),
        pytest.param({**GOOD, "ids": ["\ud800"]}, 'ids[0] "\\ud800" must be', id="a lone surrogate"),
        pytest.param(b'{"ids": ["V1"], "request_id": NaN, "data_id": "d"}', "request_id is a number (NaN)", id="not a number"),
        pytest.param(b'{"ids": ' + b"9" * 5000 + b"}", "payload is not JSON", id="a number of five thousand digits"),
        pytest.param(json.dumps(GOOD).encode("utf-16"), "payload is not JSON", id="UTF-16"),
        pytest.param(b"[" * 101, "payload holds over 100 lists and objects", id="nested lists"),
        pytest.param({**GOOD, "request_id": "a/b"}, 'request_id "a/b" must be', id="a slash in request_id"),
        pytest.param({**GOOD, "request_id": ""}, "request_id", id="empty request_id"),
        pytest.param({"ids": ["V1"], "request_id": "r"}, "data_id is missing", id="neither data_id nor data"),
        pytest.param({**GOOD, "data_id": True}, "data_id is a boolean", id="a boolean as data_id"),
        pytest.param({"ids": ["V1"], "request_id": "r", "data": "%"}, "data is not base64", id="data that is not base64"),
        pytest.param({"ids": ["V1"], "request_id": "r", "data": 1}, "data is a number", id="data that is not a string"),
        pytest.param({**GOOD, "data": ""}, "is not the SHA-1 of data", id="a data_id that names other bytes"),
        pytest.param(
            {**GOOD, "data": "", "data_id": {}}, "data_id is a object (0 items)", id="data_id next to data is not a string"
        ),
    ],
)
def test_an_invalid_field_is_refused_with_value_and_remedy(fields: Any, reason: str) -> None:
    refused = parse(fields)

    assert isinstance(refused, Refused)
    assert reason in refused.reason


def test_limits_are_inclusive() -> None:
    ids = {**GOOD, "ids": ["V1", "V2", "V3"]}

    assert isinstance(parse(ids, max_ids=3), Trigger)
    assert parse(ids, max_ids=2) == Refused("ids has 3 VINs, over max_ids=2; send several triggers or raise the setting")
    assert isinstance(parse_data("d", b"12345", max_data_bytes=5), Data)
    assert isinstance(parse_data("d", b"123456", max_data_bytes=5), Refused)


def test_a_trigger_digest_covers_its_set_of_vins_and_its_ids() -> None:
    same = {trigger_digest(["A", "B"], "r", "d"), trigger_digest(["B", "A", "B"], "r", "d")}
    other = {trigger_digest(["A"], "r", "d"), trigger_digest(["A", "B"], "r2", "d"), trigger_digest(["A", "B"], "r", "d2")}

    assert len(same) == 1
    assert len(other | same) == 4


def test_inline_text_is_taken_literally_and_a_lone_surrogate_is_refused() -> None:
    fields = {"ids": ["V"], "request_id": "r"}
    half = parse(fields | {"data": "\ud800"}, inline_encoding="text")

    assert _data(parse(fields | {"data": "not base64: ä"}, inline_encoding="text")) == "not base64: ä".encode()
    assert _data(parse(fields | {"data": "maps"}, inline_encoding="text")) == b"maps"
    assert _data(parse(fields | {"data": "maps"})) == b"\x99\xaa\x6c"
    assert isinstance(half, Refused)
    assert "half of a surrogate pair" in half.reason


def _data(trigger: Trigger | Refused) -> bytes | None:
    assert isinstance(trigger, Trigger), trigger
    return trigger.data


RELEASE = {"wave": 2, "step": 418, "until": 1796174400000}


def test_a_campaign_trigger_carries_wave_step_and_window() -> None:
    trigger = parse({**GOOD, "campaign": RELEASE}, is_release=True)

    assert isinstance(trigger, Trigger)
    assert trigger.campaign == ReleasedBy(wave=2, step=418, until_ms=1796174400000)


def test_campaign_steps_distinguish_triggers_of_the_same_vehicles() -> None:
    triggers = [parse(GOOD), *(parse({**GOOD, "campaign": RELEASE | more}, is_release=True) for more in ({}, {"step": 419}))]

    assert len({trigger.digest for trigger in triggers if isinstance(trigger, Trigger)}) == 3
    again = parse({**GOOD, "campaign": RELEASE | {"until": None}}, is_release=True)
    assert isinstance(again, Trigger)
    assert isinstance(triggers[1], Trigger)
    assert again.digest == triggers[1].digest
    assert isinstance(triggers[0], Trigger)
    assert triggers[0].digest == trigger_digest(["V1", "V2"], "task_ota_1", "d1")


@pytest.mark.parametrize("campaign", ["spring", 7, None, ["a"], {}, RELEASE])
def test_a_campaign_field_of_a_publishers_trigger_is_ignored(campaign: object) -> None:
    trigger = parse({**GOOD, "campaign": campaign})

    assert isinstance(trigger, Trigger)
    assert trigger.campaign is None


@pytest.mark.parametrize(
    ("campaign", "reason"),
    [
        (None, "campaign is a null; a release has an object with wave, step and until"),
        ("spring", "campaign is a string; a release has an object"),
        ({}, "campaign.wave null must be a whole number from 0 to 9007199254740991"),
        (RELEASE | {"wave": -1}, "campaign.wave -1 must be a whole number from 0"),
        (RELEASE | {"step": 0}, "campaign.step 0 must be a whole number from 1"),
        (RELEASE | {"step": True}, "campaign.step true must be a whole number from 1"),
        (RELEASE | {"until": "05:00"}, 'campaign.until "05:00" must be a whole number from 0'),
        (RELEASE | {"until": 1 << 53}, "campaign.until 9007199254740992 must be a whole number from 0"),
    ],
)
def test_a_malformed_release_is_refused_with_field_value_and_remedy(campaign: object, reason: str) -> None:
    told = parse({**GOOD, "campaign": campaign}, is_release=True)

    assert isinstance(told, Refused)
    assert told.reason.startswith(reason)


def test_a_release_names_its_data_and_carries_none() -> None:
    told = parse({"ids": ["V1"], "request_id": "r", "data": "YQ==", "campaign": RELEASE}, is_release=True)

    assert told == Refused("data is inline in a campaign's trigger; publish it once, and name it by data_id")
