"""`/ecq/{client_id}` and its rewind, with a real broker and recorder."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import given

from manifold.contracts import keys
from manifold.contracts.ecq import EcqAck
from manifold.contracts.envelope import Stream
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.seq import MAX_SEQ, first_seq_at, seq_of, wall_clock_ms
from manifold.contracts.topics import ecq_rewind_topic
from manifold.queues.verbs.ecq import Acknowledge, Append
from tests.manifold.api.desk import Desk, desk_beside_a_recorder
from tests.manifold.api.test_document import bounded
from tests.manifold.recorder.harness import Harness

PROBLEM = "application/problem+json"
HERE = "/api/v1/ecq"


@dataclass(slots=True)
class Place:
    """The API and the recorder that receives its publishes."""

    desk: Desk
    harness: Harness

    def rewind(self, client_id: str, body: Any) -> httpx.Response:
        return self.desk.ask(f"{HERE}/{client_id}/rewind", "POST", json=body)

    def append(self, client_id: str, messages: list[tuple[int, str, bytes]], *, acked: int | None = None) -> None:
        async def body(queues: Any) -> None:
            batch = queues.batch()
            for seq, key, payload in messages:
                batch.add(ecq_queue(client_id), Append(seq, key, payload), wall_clock_ms())
            if acked is not None:
                batch.add(ecq_queue(client_id), Acknowledge(EcqAck(client_id, acked, wall_clock_ms())), wall_clock_ms())
            await batch.run()
            await queues.redis.set(keys.LOADED, "now")

        self.desk.use(body)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Tests isolate themselves by client ids."""
    with desk_beside_a_recorder(tmp_path_factory.mktemp("place")) as (desk, harness):
        yield Place(desk, harness)


@pytest.fixture
def client_id() -> str:
    return f"C-{uuid.uuid4().hex[:12]}"


def test_a_queue_is_returned_in_pages(place: Place, client_id: str) -> None:
    seqs = [seq_of(wall_clock_ms() - 1000 + n, 0, 0) for n in range(5)]
    place.append(client_id, [(seq, f"k/{n}", b"x" * n) for n, seq in enumerate(seqs)], acked=seqs[0])

    first = place.desk.get(f"/ecq/{client_id}", limit=3).json()
    second = place.desk.get(f"/ecq/{client_id}", limit=3, after=first["after"]).json()

    assert {name: first[name] for name in ("client_id", "last_seq", "acked_seq", "after")} == {
        "client_id": client_id,
        "last_seq": seqs[-1],
        "acked_seq": seqs[0],
        "after": seqs[2],
    }
    assert first["acked_at"].endswith("Z")
    assert [list(entry) for entry in first["entries"]] == [["key", "seq", "ts", "size_bytes", "state"]] * 3
    told = [(e["key"], e["seq"], e["size_bytes"], e["state"]) for e in first["entries"] + second["entries"]]
    assert told == [(f"k/{n}", seq, n, "pending" if n else "delivered") for n, seq in enumerate(seqs)]
    assert second["after"] is None


def test_an_expired_message_is_returned_with_time_and_reason(place: Place, client_id: str) -> None:
    old, young = (seq_of(wall_clock_ms() - days * 86_400_000, 0, 0) for days in (40, 1))
    place.append(client_id, [(old, "a", b"x"), (young, "b", b"x")])

    first, second = place.desk.get(f"/ecq/{client_id}").json()["entries"]

    assert (first["state"], first["reason"]) == ("expired", "its retention passed while it was pending")
    assert datetime.fromisoformat(first["ended_at"]) == datetime.fromisoformat(first["ts"]) + timedelta(days=30)
    assert (second["state"], list(second)) == ("pending", ["key", "seq", "ts", "size_bytes", "state"])


@pytest.mark.parametrize(
    ("to", "word", "first_seq"),
    [
        ("earliest", b"earliest", 0),
        (911974771715997696, b"911974771715997696", 911974771715997696),
        ("911974771715997696", b"911974771715997696", 911974771715997696),
        ("2026-11-21T13:42:09Z", b"2026-11-21T13:42:09Z", first_seq_at(datetime(2026, 11, 21, 13, 42, 9, tzinfo=UTC))),
    ],
)
def test_a_rewind_is_on_disk_when_it_is_answered(place: Place, client_id: str, to: object, word: bytes, first_seq: int) -> None:
    answer = place.rewind(client_id, {"to": to})

    assert answer.status_code == 200, answer.text
    rewound = answer.json()
    place.harness.flush()
    (found,) = [e for e in place.harness.archived(Stream.ECQ) if e.topic == ecq_rewind_topic(client_id)]
    assert (found.seq, found.payload, rewound["client_id"]) == (rewound["seq"], word, client_id)
    assert rewound["first_seq"] == first_seq


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"to": "yesterday"}, "to=yesterday: value error, is not a position to rewind to; send earliest, a seq"),
        ({"to": ""}, "to=: "),
        ({"to": -1}, "to=-1: "),
        ({"to": MAX_SEQ + 1}, "is not a position to rewind to"),
        ({"to": True}, "to"),
        ({"to": None}, "to"),
        ({"to": 1.5}, "to"),
        ({"to": "9" * 5000}, "…"),
        ({}, "to={}: field required"),
        ({"to": "earliest", "too": 1}, "too=1: "),
        ([], "body=[]: input should be a valid dictionary"),
    ],
)
def test_an_invalid_parameter_is_refused_with_value_and_remedy(place: Place, client_id: str, body: Any, detail: str) -> None:
    answer = place.rewind(client_id, body)

    assert (answer.status_code, answer.headers["content-type"]) == (422, PROBLEM)
    assert detail in answer.json()["detail"]
    assert all(error["place"] == "body" for error in answer.json()["errors"])
    assert len(answer.content) < 3000


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (b'{"to": "earliest"', "body: is not JSON: Expecting ',' delimiter at character 17"),
        (b'{"to": earliest}', "body: is not JSON: Expecting value at character 7"),
        (b"null", "body=None: field required"),
        (b"{", "body: is not JSON: Expecting property name enclosed in double quotes at character 1"),
    ],
)
def test_an_invalid_body_is_refused_with_reason_and_location(place: Place, client_id: str, content: bytes, detail: str) -> None:
    headers = {"content-type": "application/json"}
    answer = place.desk.ask(f"{HERE}/{client_id}/rewind", "POST", content=content, headers=headers)

    assert (answer.status_code, answer.headers["content-type"]) == (422, PROBLEM)
    assert answer.json()["detail"] == detail
    assert answer.json()["errors"][0]["name"] == "body"


@pytest.mark.parametrize("client_id", ["w", "r", "sdv-recorder", "two%20words", "V" * 65, "%23"])
def test_an_id_that_can_have_no_queue_is_refused(place: Place, client_id: str) -> None:
    answers = [place.desk.get(f"/ecq/{client_id}"), place.rewind(client_id, {"to": "earliest"})]

    assert [(answer.status_code, answer.headers["content-type"]) for answer in answers] == [(422, PROBLEM)] * 2


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({"content": b'{"to": "earliest"}', "headers": {"content-type": "text/plain"}}, 415),
        ({"content": b'{"to": "earliest"}'}, 415),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 422),
        ({"content": b"\xff\xfe", "headers": {"content-type": "application/json"}}, 422),
        ({"content": b"[" * 60_000, "headers": {"content-type": "application/json"}}, 422),
        ({"content": b" " * 70_000, "headers": {"content-type": "application/json"}}, 413),
        ({"content": iter([b" " * 40_000] * 2), "headers": {"content-type": "application/json"}}, 413),
    ],
)
def test_a_malformed_body_is_a_problem_and_no_rewind(place: Place, client_id: str, how: dict[str, Any], status: int) -> None:
    answer = place.desk.ask(f"{HERE}/{client_id}/rewind", "POST", **how)

    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM)
    place.harness.flush()
    assert not [e for e in place.harness.archived(Stream.ECQ) if client_id in e.topic]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_rewind_is_posted(place: Place, client_id: str, method: str) -> None:
    answer = place.desk.ask(f"{HERE}/{client_id}/rewind", method)

    assert (answer.status_code, answer.headers["allow"], answer.headers["content-type"]) == (405, "POST", PROBLEM)
    assert "POST" in answer.json()["detail"]


@pytest.mark.parametrize("kind", ["positive", "negative"])
@pytest.mark.parametrize(("route", "method"), [("", "GET"), ("/rewind", "POST")])
def test_responses_match_the_openapi_document(place: Place, route: str, method: str, kind: str) -> None:
    schema = schemathesis.openapi.from_dict(place.desk.get("/openapi.json").json())
    operation = schema[f"/api/v1/ecq/{{client_id}}{route}"][method]

    @bounded
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(kind)))
    def ask(case: Any) -> None:
        if kind == "positive":
            case.path_parameters["client_id"] = f"C-{uuid.uuid4().hex[:12]}"  # a queue takes ten rewinds at once
        case.call_and_validate(base_url=place.desk.settings.api, timeout=30)

    ask()
