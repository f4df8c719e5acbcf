"""Messages and replies of the service fit into a frame and name their original queue."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from manifold.contracts.signals import topology
from manifold.contracts.signals.codes import Code, ErrorReport, Refusal
from manifold.contracts.signals.messages import parse_raw
from manifold.signals._outgoing import back_off_ms, dead_letter, reply, retry
from manifold.signals._received import Received
from manifold.signals.compat import MAX_HEADERS
from tests.manifold.signals.gateway import body_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REFUSAL = Refusal(Code.SCHEMA_ERROR, "a field is not as the schema has it", "send another")


def received(headers: dict[str, Any] | None = None, **more: Any) -> Received:
    about: dict[str, Any] = {"queue": topology.RAW, "body": b"", "headers": headers or {}, "at": NOW}
    message = SimpleNamespace(content_type="application/json", content_encoding="gzip")
    return Received(**(about | {"message": message} | more))


def report(refusal: Refusal = REFUSAL, correlation_id: str | None = None) -> ErrorReport:
    return ErrorReport.of(refusal, at=NOW, correlation_id=correlation_id, retry_count=0)


def test_an_error_about_a_field_with_a_long_name_is_short() -> None:
    refusal = parse_raw(body_of()[:-1] + b', "' + b"x" * 200_000 + b'": 1}')
    assert isinstance(refusal, Refusal)
    error = json.loads(str(dead_letter(received(), report(refusal)).message.headers["x-error"]))

    assert len(error["message"]) <= 500
    assert len(error["details"]) <= 500
    assert len(refusal.reason) <= 500
    assert len(report(Refusal(Code.SCHEMA_ERROR, "\x00" * 9999, "€" * 9999)).to_json()) < 10_000


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"a": "€" * 43_000}, id="three bytes per character"),
        pytest.param({f"{n}€": "😀" * 9 for n in range(2500)}, id="many"),
        pytest.param({"a": [0.5] * 9000, "b": "😀" * 20_000}, id="numbers"),
        pytest.param({"x-retry-count": "9" * 120_000, "x-error": "9" * 120_000}, id="the service's own headers"),
        pytest.param({"x-error": "😀" * 9999, "a": "b" * 30_000}, id="the service's own headers with four bytes per character"),
        pytest.param({"a": {1, 2}}, id="an unsendable type"),
    ],
)
def test_headers_too_large_to_be_read_back_are_dropped(headers: dict[str, Any]) -> None:
    for one in (retry(received(headers), 1000), dead_letter(received(headers), report())):
        assert len(one.message.properties.marshal()) < MAX_HEADERS  # otherwise it could not be read back
        assert "x-left-out" in one.message.headers
        assert one.message.content_encoding == "gzip"  # otherwise its body would be read as plain


@pytest.mark.parametrize(
    ("of_property", "of_header", "sent"),
    [
        ("mine", "yours", "mine"),
        ("", "yours", "yours"),
        ("€" * 100, "yours", "yours"),
        ("€" * 100, "€" * 100, None),
        (None, "€" * 100, None),
    ],
    ids=["fits", "empty", "too long", "both too long", "none"],
)
def test_a_reply_has_a_sendable_correlation_id(of_property: str | None, of_header: str, sent: str | None) -> None:
    one = reply(received(reply_to="mine", correlation_property=of_property), report(correlation_id=of_header), NOW)

    assert one is not None
    assert one.message.correlation_id == sent
    assert one.message.properties.marshal()


@pytest.mark.parametrize("queue", [topology.RAW, topology.STATUS])
def test_a_forwarded_message_keeps_its_kind(queue: str) -> None:
    """A retried message returns through the raw queue, whichever queue it came from; so does a replayed dead letter."""
    first = received({"x-queue": "another"}, queue=queue)
    large = received({"a": "€" * 43_000}, queue=queue)
    sent_on = [retry(first, 1000), dead_letter(first, report()), retry(large, 1000)]
    again = [received(dict(one.message.headers)) for one in sent_on]
    sent_on += [retry(one, 1000) for one in again]

    assert [received(dict(one.message.headers)).is_status for one in sent_on] == [queue == topology.STATUS] * 6


@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_a_sender_cannot_route_into_other_queues_through_the_service(name: str) -> None:
    """RabbitMQ also routes by these headers, and the service may publish to queues that its senders may not."""
    first = received({name: [topology.PROCESSED], "mine": "a"})
    again = received({"mine": "a"})

    for one in (retry(first, 1000), dead_letter(first, report())):
        assert name not in one.message.headers
        assert one.message.headers["mine"] == "a"
    assert first.digest == again.digest


def test_a_refused_message_that_was_retried_counts_as_recorded() -> None:
    """RabbitMQ writes x-death when the retry queue returns it; in a dead letter that would mean that it expired unseen."""
    retried = received({"x-death": [{"queue": topology.RETRY, "reason": "expired"}], "x-retry-count": 1})

    letter = received(dict(dead_letter(retried, report()).message.headers), queue=topology.DEAD_COPY)

    assert letter.is_recorded_copy


def test_properties_too_large_for_a_small_frame_are_dropped() -> None:
    first = received({"a": "b" * 9000}, body=b"x" * 20_000)

    for one in (retry(first, 1000, max_properties=8000), dead_letter(first, report(), max_properties=8000)):
        assert len(one.message.properties.marshal()) <= 8000
        assert "x-left-out" in one.message.headers
        assert one.message.body == first.body


@pytest.mark.parametrize(
    ("retry_count", "least_ms", "most_ms"),
    [(0, 750, 1250), (1, 1500, 2500), (2, 3000, 5000), (5, 22_500, 30_000), (99, 22_500, 30_000)],
)
def test_the_backoff_doubles_up_to_thirty_seconds(retry_count: int, least_ms: int, most_ms: int) -> None:
    assert back_off_ms(retry_count, at_random=0) == least_ms
    assert back_off_ms(retry_count, at_random=1) == most_ms
