"""Tells a catalog of lineage what OpenLineage events say: appended to a file, a line each, or sent by POST to an address."""

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from adapters.tls import outside_context
from contracts.settings import Settings

FILE = "file://"
TIMEOUT_S = 10  # for all events of a run

log = logging.getLogger(__name__)


def tell(settings: Settings, events: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all of them were told. What the caller was about goes on, either way; the log says it, too."""
    url = settings.lineage_url.get_secret_value()
    try:
        if url.startswith(FILE):
            _append(Path(url.removeprefix(FILE)), events)
        else:
            _send(url, settings, events)
    except (OSError, httpx.HTTPError, httpx.InvalidURL) as exc:
        # Its text may have the address, which may have a password.
        log.warning("the lineage of a run was not told: MANIFOLD_LINEAGE_URL answers %s", type(exc).__name__)
        return False
    return True


def _append(file: Path, events: Sequence[Mapping[str, Any]]) -> None:
    """One write, so that those of two runs do not mix."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(event) + "\n" for event in events).encode()
    to = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(to, lines)
    finally:
        os.close(to)


def _send(url: str, settings: Settings, events: Sequence[Mapping[str, Any]]) -> None:
    token, until = settings.lineage_token.get_secret_value(), time.monotonic() + TIMEOUT_S
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(headers=headers, verify=outside_context(settings)) as client:
        for event in events:
            if (left := until - time.monotonic()) <= 0:
                raise httpx.ReadTimeout("the events before this one took all of the time")
            client.post(url, json=event, timeout=left).raise_for_status()
