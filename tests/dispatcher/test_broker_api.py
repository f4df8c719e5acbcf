"""The client of EMQX's REST API, where another program answers at its address."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from dispatcher._broker_api import BrokerApi
from manifold.contracts.errors import Retryable
from manifold.settings import Settings
from tests.support.other_program import other_program


@pytest.mark.parametrize("body", [b"5", b"null", b"[1]", b"[]", b'"code"', b"<html>"])
def test_an_answer_that_is_not_an_object_is_retryable(body: bytes) -> None:
    async def ask(settings: Settings) -> None:
        until = datetime.now(UTC) + timedelta(days=1)
        async with BrokerApi(settings) as api:
            for request in (api.session("V"), anext(api.sessions()), api.ban("V", until)):
                with pytest.raises(Retryable):
                    await request

    with other_program(body) as program:
        settings = Settings(emqx_api_url=f"http://127.0.0.1:{program.port}/api/v5")
        asyncio.run(ask(settings))
        program.status = 400
        asyncio.run(ask(settings))
