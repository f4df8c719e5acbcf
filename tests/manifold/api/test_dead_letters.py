"""`/dead-letters`, where another program answers in place of the AMQP door."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.manifold.api.desk import Desk, api_of, settings_at
from tests.support.other_program import OtherProgram, other_program
from tests.support.servers import Server


@pytest.fixture(scope="module")
def program() -> Iterator[OtherProgram]:
    with other_program() as running:
        yield running


@pytest.fixture(scope="module")
def desk(program: OtherProgram, redis_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """An API that asks the other program."""
    home: Path = tmp_path_factory.mktemp("other")
    settings = settings_at(home, redis_server.port, signals_port=program.port)
    with api_of(settings, home / "api.log", healthy=False) as api:
        yield Desk(settings, redis_server, api)


@pytest.mark.parametrize("status", [200, 404, 500])
@pytest.mark.parametrize("body", [b"5", b"null", b"[1]", b'"reason"', b"{}", b'{"dead_letters": [5]}', b"<html>", b"\xff"])
def test_another_program_in_place_of_the_amqp_door_is_a_retryable_problem(
    desk: Desk, program: OtherProgram, status: int, body: bytes
) -> None:
    program.status, program.body = status, body

    answers = [desk.get("/dead-letters"), desk.get("/dead-letters/1")]

    assert [answer.status_code for answer in answers] == [httpx.codes.SERVICE_UNAVAILABLE] * 2
    assert all("the AMQP door" in answer.json()["detail"] for answer in answers)
