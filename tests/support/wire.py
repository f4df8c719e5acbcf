"""Publishers' messages as bytes."""

import json
from collections.abc import Sequence


def trigger(vins: Sequence[str], request_id: str, data_id: str = "d") -> bytes:
    """The payload of a trigger."""
    return json.dumps({"ids": list(vins), "request_id": request_id, "data_id": data_id}).encode()


def release(vins: Sequence[str], campaign: str, data_id: str, *, step: int = 1, until_ms: int | None = None) -> bytes:
    """The payload of a campaign's trigger, in its first wave."""
    place = {"wave": 0, "step": step, "until": until_ms}
    return json.dumps({"ids": list(vins), "request_id": campaign, "data_id": data_id, "campaign": place}).encode()
