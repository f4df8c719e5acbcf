"""The service at the API's address may be another program."""

import pytest

from manifold.history.from_service import ask_service
from manifold.settings import Settings
from tests.support.other_program import other_program


@pytest.mark.parametrize("body", [b"{}", b"[]", b"null", b'"ingested"', b"<html>", b"\xff"])
def test_a_server_that_answers_otherwise_is_not_the_api(body: bytes) -> None:
    with other_program(body) as program:
        assert ask_service(Settings(api_port=program.port), "lake/entries", {"vin": "V1"}, "ingested") is None


def test_an_answer_of_the_api_is_used() -> None:
    with other_program(b'{"entries": [], "ingested": []}') as program:
        answer = ask_service(Settings(api_port=program.port), "lake/entries", {"vin": "V1"}, "ingested")

    assert answer == {"entries": [], "ingested": []}
