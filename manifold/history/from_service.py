"""Client of the API, which has queues, archive and lake open. Needs neither PyIceberg nor a Redis client.

Every function returns None if no API answers in time; the caller then reads the sources itself.
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

WAIT_S = 30


def vehicle_page(settings: Settings, vin: str, bounds: Bounds) -> VehiclePage | None:
    """Return the newest entries of a vehicle within the bounds, oldest first."""
    asked = {"limit": bounds.limit, "before": bounds.before}
    answer = ask_service(settings, f"vins/{quote(vin, safe='')}/history", asked, "entries")
    return None if answer is None else VehiclePage(entries_of(vin, answer), answer["before"])


def batch_page(settings: Settings, request_id: str, bounds: Bounds) -> BatchPage | None:
    """Return the newest triggers of a request_id within the bounds, oldest first, with entry states; `entries` is empty."""
    asked = {"limit": bounds.limit, "before": bounds.before, "entries": bounds.entries, "rows": bounds.rows}
    answer = ask_service(settings, f"batches/{quote(request_id, safe='')}", asked, "batches")
    if answer is None:
        return None
    batches = [BatchHistory(batch["seq"], batch["data_id"], batch["vehicles"], batch["states"]) for batch in answer["batches"]]
    return BatchPage(batches, answer["before"])


def entries_of(vin: str, answer: Mapping[str, Any]) -> list[EntryHistory]:
    """Parse the entries of a vehicle from an answer."""
    return [EntryHistory.from_json(vin, fields) for fields in answer["entries"]]


def ask_service(settings: Settings, route: str, asked: Mapping[str, str | int], field: str) -> dict[str, Any] | None:
    """Request `/api/v1/{route}`; None unless the answer is an object with this field: it may come from another program."""
    try:
        request = Request(f"{settings.api}/api/v1/{route}?{urlencode(asked)}", headers=settings.bearer)  # noqa: S310  # settings: http(s)
        with urlopen(request, timeout=WAIT_S, context=web_context(settings, settings.api)) as response:  # noqa: S310
            answer = json.load(response)
    except (OSError, HTTPException, ValueError):  # includes urllib's errors
        return None
    return answer if isinstance(answer, dict) and field in answer else None
