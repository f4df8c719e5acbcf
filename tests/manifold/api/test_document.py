"""The OpenAPI document matches the API: requests are generated from it and every response is validated against it."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from manifold.queues import QueueStats
from tests.manifold.api.desk import Desk

EXAMPLES = 10
ROUTES = (
    "/vins/{vin}",
    "/fleet",
    "/queues",
    "/quarantine",
    "/lake/freshness",
    "/vins/{vin}/history",
    "/batches/{request_id}",
    "/data/{data_id}",
    "/data/{data_id}/payload",
    "/lake/entries",
    "/lake/triggers",
    "/signals/{device_id}",
    "/signal-keys",
)
OF_COMPACTED_QUEUES = ("/ecq/{client_id}", "/ecq/{client_id}/rewind")  # tested in test_ecq
ORDERS = ("pause", "cancel", "approve", "refuse", "resume", "pass", "retry", "amend")
ASKED = (
    "/campaigns",
    *(f"/campaigns/{{campaign}}{what}" for what in ("", "/plan", "/targets", "/events", "/forecast", "/report")),
)
OF_CAMPAIGNS = (*ASKED, "/vins/{vin}/campaigns", *(f"/campaigns/{{campaign}}/{order}" for order in ORDERS))  # in test_campaigns
OF_DEAD_LETTERS = ("/dead-letters", "/dead-letters/{place}")  # in signals/test_dead_letter_api
bounded = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def document(desk: Desk) -> Any:
    """The API's OpenAPI document, with queue statistics available."""

    async def count(queues: Any) -> None:
        await QueueStats(0).save(queues.redis, queues.policy)

    desk.use(count)
    return desk.get("/openapi.json").json()


def test_every_route_documents_example_responses_and_failures(document: Any) -> None:
    routes = (*ROUTES, *OF_COMPACTED_QUEUES, *OF_CAMPAIGNS, *OF_DEAD_LETTERS)
    assert set(document["paths"]) == {f"/api/v1{route}" for route in routes}
    for operation in (operation for path in document["paths"].values() for operation in path.values()):
        assert operation["description"]
        assert {"200", "401", "422", "500", "503"} <= set(operation["responses"])
        ((kind, answer),) = operation["responses"]["200"]["content"].items()
        if kind == "application/json":
            models = answer["schema"].get("anyOf", [answer["schema"]])
            assert all(document["components"]["schemas"][model["$ref"].rpartition("/")[2]]["example"] for model in models)
        assert all(parameter["description"] for parameter in operation.get("parameters", ()))


def test_every_response_field_has_a_description(document: Any) -> None:
    fields = {
        f"{name}.{field}": about
        for name, schema in document["components"]["schemas"].items()
        for field, about in schema.get("properties", {}).items()
    }

    assert len(fields) > 50
    assert [name for name, about in fields.items() if "description" not in about and "$ref" not in str(about)] == []


@pytest.mark.parametrize("kind", ["positive", "negative"])
@pytest.mark.parametrize("route", ROUTES)
def test_responses_match_the_openapi_document(desk: Desk, document: Any, route: str, kind: str) -> None:
    schema = schemathesis.openapi.from_dict(document)
    operation = schema[f"/api/v1{route}"]["GET"]
    mode = schemathesis.GenerationMode(kind)
    if kind == "negative" and not list(operation.iter_parameters()):
        return

    @bounded
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        case.call_and_validate(base_url=desk.settings.api, timeout=30)

    ask()
