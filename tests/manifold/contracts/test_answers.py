"""What vehicles answer to campaigns: which answers are accepted, and what is said of the others."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifold.contracts.answers import MAX_ANSWER_BYTES, MAX_REASON, Answer, VehicleAnswer, is_answer, parse_answer
from manifold.contracts.messages import Refused
from manifold.contracts.names import Owner, RequestId
from manifold.contracts.seq import MAX_SEQ
from manifold.contracts.topics import response_filter, response_of, response_topic

TOPIC = response_topic("agent", "V1", "maps-47")


def wire(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def answered(answer: Answer, reason: str = "", release: int = 7) -> VehicleAnswer:
    return VehicleAnswer(Owner("V1"), RequestId("maps-47"), release, answer, reason)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        *((wire(seq=7, status=answer.value), answered(answer)) for answer in Answer),
        (wire(seq=7, status="busy", reason="in motion"), answered(Answer.BUSY, "in motion")),
        (wire(seq=7, status="done", reason=None, map=48), answered(Answer.DONE)),
        (wire(seq=str(MAX_SEQ), status="done"), answered(Answer.DONE, release=MAX_SEQ)),
        (b'\xef\xbb\xbf{"seq": 7, "status": "failed", "status": "done"}', answered(Answer.DONE)),
        (wire(seq=7, status="failed", reason="é" * (MAX_REASON + 1)), answered(Answer.FAILED, "é" * MAX_REASON)),
        (wire(seq=7, status="failed", reason="\x1b[2Jdone\n\ud800"), answered(Answer.FAILED, "�[2Jdone��")),
    ],
)
def test_an_answer_is_accepted_with_a_bounded_printable_reason(payload: bytes, expected: VehicleAnswer) -> None:
    assert parse_answer(TOPIC, payload) == expected


@pytest.mark.parametrize(
    ("topic", "payload", "reason"),
    [
        ("agent/V1/proxy/response", wire(seq=7, status="done"), 'topic "agent/V1/proxy/response" names no campaign; answer on'),
        ("agent/V1/proxy/response/a/b", wire(seq=7, status="done"), 'topic "agent/V1/proxy/response/a/b" names no campaign'),
        ("agent/V1/proxy/request/a", wire(seq=7, status="done"), 'topic "agent/V1/proxy/request/a" names no campaign'),
        (response_topic("agent", "", "a"), wire(seq=7, status="done"), 'VIN "" in the topic must be 1 to 64 printable'),
        (response_topic("agent", "V 1", "a"), wire(seq=7, status="done"), 'VIN "V 1" in the topic must be 1 to 64 printable'),
        (response_topic("agent", "V1", ""), wire(seq=7, status="done"), 'campaign "" in the topic must be 1 to 128'),
        (response_topic("agent", "V1", "a+"), wire(seq=7, status="done"), 'campaign "a+" in the topic must be 1 to 128'),
        (TOPIC, wire(seq=7, status="done", reason="x" * 4096), "an answer of 4138 bytes is over 4096; send a shorter reason"),
        (TOPIC, b'"seq" "status"', "payload is not JSON (Extra data"),
        (TOPIC, b'{"seq": 7, "status": "\xff"}', "payload is not JSON ('utf-8' codec"),
        (TOPIC, b"[" * 4096, "payload is not JSON ("),
        (TOPIC, b'["seq", "status"]', "payload is not a JSON object; send one with seq and status"),
        (TOPIC, wire(status="done"), "seq null must be a whole number from 1 to"),
        *(
            (TOPIC, wire(seq=bad, status="done"), "seq ")
            for bad in (0, -1, MAX_SEQ + 1, 7.0, True, "7.0", "٣", "", [7], {"a": 1})
        ),
        (TOPIC, wire(seq=7), "status null must be one of busy, failed, refused, done"),
        (TOPIC, wire(seq=7, status="Done"), 'status "Done" must be one of busy, failed, refused, done'),
        (TOPIC, wire(seq=7, status=["done"]), "status 1 item must be one of busy"),
        (TOPIC, wire(seq=7, status="done", reason=3), "reason 3 must be a string; leave it out if there is none"),
    ],
)
def test_a_refused_answer_names_field_value_and_remedy(topic: str, payload: bytes, reason: str) -> None:
    said = parse_answer(topic, payload)
    assert isinstance(said, Refused)
    assert said.reason.startswith(reason)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([*Answer, "7"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.sampled_from(["seq", "status"]), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.text(), st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_on_any_topic_are_an_answer_or_a_reason(topic: str, payload: bytes) -> None:
    for place in (topic, TOPIC, response_topic("agent", topic, "a"), response_topic("agent", "V1", topic)):
        said = parse_answer(place, payload)
        if isinstance(said, VehicleAnswer):
            assert response_of(place) == (said.vin, said.campaign)
            assert 1 <= said.release <= MAX_SEQ
        else:
            assert said.reason.strip()


@given(st.integers(1, MAX_SEQ), st.sampled_from(Answer), st.text(max_size=100), st.booleans())
def test_every_answer_of_a_sane_vehicle_is_accepted(seq: int, answer: Answer, reason: str, as_text: bool) -> None:
    payload = json.dumps({"seq": str(seq) if as_text else seq, "status": answer, "reason": reason}).encode()
    said = parse_answer(TOPIC, payload)

    assert isinstance(said, VehicleAnswer)
    assert (said.release, said.answer, len(said.reason)) == (seq, answer, len(reason))
    assert said.reason.isprintable()
    assert is_answer(payload)
    assert len(payload) <= MAX_ANSWER_BYTES


@pytest.mark.parametrize("payload", [b"", b"\x00\x01", b'{"status": "ok"}', b'{"seq": 7}', b'{"result": {"sequence": 1}}'])
def test_another_response_of_a_vehicle_is_no_answer(payload: bytes) -> None:
    assert not is_answer(payload)


@pytest.mark.parametrize("prefix", ["agent", "fleet/eu", "proxy/response"])
def test_a_response_topic_is_parsed_under_any_prefix(prefix: str) -> None:
    assert response_of(response_topic(prefix, "V1", "a")) == ("V1", "a")
    assert response_filter(prefix) == f"{prefix}/+/proxy/response/+"
