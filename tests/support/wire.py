"""Publishers' messages as bytes."""

import json
from collections.abc import Sequence


def trigger(vins: Sequence[str], request_id: str, data_id: str = "d") -> bytes:
    """The payload of a trigger."""
    return json.dumps({"ids": list(vins), "request_id": request_id, "data_id": data_id}).encode()
