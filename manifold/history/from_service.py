"""A client of the API, which has queues, archive and lake open. It needs neither PyIceberg nor a Redis client.

Every request returns None if no API responds in time; then the caller reads the sources itself.
"""

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from manifold.history.entry import BatchHistory, BatchPage, Bounds, EntryHistory, VehiclePage
from manifold.runtime.tls import web_context
from manifold.settings import Settings

REQUEST_TIMEOUT_S = 30


def vehicle_page(settings: Settings, vin: str, bounds: Bounds) -> VehiclePage | None:
    """Return the newest entries of a vehicle within the bounds, oldest first."""
    parameters = {"limit": bounds.limit, "before": bounds.before}
    response = ask_service(settings, f"vins/{quote(vin, safe='')}/history", parameters, "entries")
    return None if response is None else VehiclePage(parse_entries(vin, response), response["before"])


def batch_page(settings: Settings, request_id: str, bounds: Bounds) -> BatchPage | None:
    """Return the newest triggers of a request_id within the bounds, oldest first, with entry states; `entries` is empty."""
    parameters = {"limit": bounds.limit, "before": bounds.before, "entries": bounds.entries, "rows": bounds.rows}
    response = ask_service(settings, f"batches/{quote(request_id, safe='')}", parameters, "batches")
    if response is None:
        return None
    batches = [BatchHistory(batch["seq"], batch["data_id"], batch["vehicles"], batch["states"]) for batch in response["batches"]]
    return BatchPage(batches, response["before"])


def parse_entries(vin: str, response: Mapping[str, Any]) -> list[EntryHistory]:
    """Parse the entries of a vehicle from the body of a response."""
    return [EntryHistory.from_json(vin, fields) for fields in response["entries"]]


def ask_service(settings: Settings, route: str, parameters: Mapping[str, str | int], field: str) -> dict[str, Any] | None:
    """Request `/api/v1/{route}` and return the JSON object in the response.

    Return None if no API responds, or if the response is not an object with `field`, because another program may use the port.
    """
    try:
        url = f"{settings.api}/api/v1/{route}?{urlencode(parameters)}"
        request = Request(url, headers=settings.bearer)  # noqa: S310  # the settings allow only http(s)
        context = web_context(settings, settings.api)
        with urlopen(request, timeout=REQUEST_TIMEOUT_S, context=context) as response:  # noqa: S310
            body = json.load(response)
    except (OSError, HTTPException, ValueError):  # OSError includes the errors of urllib; ValueError: not JSON
        return None
    return body if isinstance(body, dict) and field in body else None
