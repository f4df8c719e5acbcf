"""Dead letters over the API: a real service inspects a real RabbitMQ and removes nothing."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import given

from manifold.contracts.signals import topology
from manifold.sandbox.platform.rabbitmq import MAX_MESSAGE_BYTES
from manifold.signals._dead_letter_pages import MAX_BYTES
from tests.manifold.api.desk import Desk, api_of, settings_at
from tests.manifold.api.test_document import bounded
from tests.manifold.signals.gateway import Door, Gateway, body_of, now_text, signed
from tests.support.servers import Server, free_port, wait_until

PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def desk(running_door: Door, redis_server: Server) -> Iterator[Desk]:
    """An API next to this file's service."""
    home = running_door.home
    settings = settings_at(home, redis_server.port, signals_port=running_door.settings.signals_port)
    with api_of(settings, home / "api.log", healthy=False) as api:
        yield Desk(settings, redis_server, api)


@pytest.fixture
def letters(door: Door, gateway: Gateway) -> list[dict[str, Any]]:
    """The headers of a stale message, of one that is not JSON, and of one that no service has seen."""
    stale, torn, good = body_of("stale"), b'{"deviceId": ', body_of("good")
    headers = [
        signed(stale, device="stale", timestamp=now_text(-8000)),
        signed(torn, device="torn"),
        signed(good, device="good"),
    ]
    for n, body in enumerate((stale, torn), 1):
        gateway.send(body, headers[n - 1])
        wait_until(lambda n=n: gateway.count(topology.DEAD) == n, what="a dead letter")  # type: ignore[misc]
    gateway.channel.basic_publish(topology.DEAD_EXCHANGE, topology.DEAD, good, _about(headers[2]), mandatory=True)
    return headers


def _about(headers: dict[str, Any]) -> Any:
    import pika

    return pika.BasicProperties(headers=headers, content_type="application/json")


def test_dead_letters_are_listed_with_their_current_disposition_and_stay(
    desk: Desk, letters: list[dict[str, Any]], gateway: Gateway
) -> None:
    page = desk.get("/dead-letters").json()

    told = [(one["place"], one["code"], one["would_be"], one["headers"]["x-correlation-id"]) for one in page["dead_letters"]]
    ids = [headers["x-correlation-id"] for headers in letters]
    assert told == [
        (1, "STALE_ERROR", "STALE_ERROR", ids[0]),
        (2, "MALFORMED_JSON", "MALFORMED_JSON", ids[1]),
        (3, "EXPIRED", "accepted", ids[2]),
    ]
    assert page["whole"] is True
    assert page["dead_letters"][0]["error"]["correlationId"] == ids[0]
    first = desk.get("/dead-letters", limit=1).json()
    assert ([one["place"] for one in first["dead_letters"]], first["whole"]) == ([1], False)
    torn = desk.get("/dead-letters", code="MALFORMED_JSON").json()
    assert [one["place"] for one in torn["dead_letters"]] == [2]
    wait_until(lambda: gateway.count(topology.DEAD) == 3, what="the dead letters to be requeued")


def test_a_dead_letter_is_shown_with_its_body_and_a_missing_one_is_reported(desk: Desk, letters: list[dict[str, Any]]) -> None:
    shown = desk.get("/dead-letters/3").json()

    assert json.loads(shown["body"])["deviceId"] == "good"
    assert (shown["place"], shown["bytes"]) == (3, len(shown["body"]))
    missing = desk.get("/dead-letters/4")
    assert (missing.status_code, missing.headers["content-type"]) == (404, PROBLEM)
    assert missing.json()["detail"] == "there is no dead letter 4"


def test_a_truncated_dead_letter_page_says_so(desk: Desk, door: Door, gateway: Gateway) -> None:
    size = MAX_MESSAGE_BYTES - (64 << 10)
    fit = MAX_BYTES // size
    for _ in range(fit + 1):
        gateway.channel.basic_publish(topology.DEAD_EXCHANGE, topology.DEAD, b"x" * size, _about({}), mandatory=True)

    page = desk.get(f"/dead-letters?limit={fit + 1}").json()

    assert ([one["bytes"] for one in page["dead_letters"]], page["whole"]) == ([size] * fit, False)
    assert desk.get(f"/dead-letters/{fit + 1}").status_code == 404


def test_keys_are_listed_by_id_without_showing_a_key(desk: Desk, door: Door, gateway: Gateway) -> None:
    gateway.send_signed()
    wait_until(lambda: door.recorded(), what="a signal to be recorded")

    answer = desk.get("/signal-keys")

    (key,) = answer.json()["keys"]
    assert (answer.json()["ring"], key["ring_id"], key["in_ring"]) == (["k1"], "k1", True)
    assert "wrapped" not in key


def test_without_the_signals_service_dead_letters_are_a_problem(desk: Desk, redis_server: Server) -> None:
    nobody = desk.settings.model_copy(update={"api_port": free_port(), "signals_port": free_port()})
    with api_of(nobody, nobody.home / "alone.log", healthy=False) as api:
        answer = Desk(nobody, redis_server, api).get("/dead-letters")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert "the AMQP door cannot be asked" in answer.json()["detail"]
    none = nobody.model_copy(update={"with_signals": False, "api_port": free_port()})
    with api_of(none, none.home / "none.log", healthy=False) as api:
        assert Desk(none, redis_server, api).get("/dead-letters").status_code == 404


@pytest.mark.parametrize("kind", ["positive", "negative"])
@pytest.mark.parametrize("route", ["", "/{place}"])
def test_responses_match_the_openapi_document(desk: Desk, letters: list[dict[str, Any]], route: str, kind: str) -> None:
    schema = schemathesis.openapi.from_dict(desk.get("/openapi.json").json())
    operation = schema[f"/api/v1/dead-letters{route}"]["GET"]

    @bounded
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(kind)))
    def ask(case: Any) -> None:
        case.call_and_validate(base_url=desk.settings.api, timeout=30)

    ask()
