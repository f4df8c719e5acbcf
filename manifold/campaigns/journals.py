"""Reads the journals of recorders over HTTP."""

from http.client import HTTPException
from urllib.error import URLError
from urllib.request import Request, urlopen

import msgspec

from manifold.archive.tail import Page, decode_page
from manifold.contracts.errors import Retryable
from manifold.runtime.tls import web_context
from manifold.settings import Settings

REQUEST_TIMEOUT_S = 10.0


def read_page(settings: Settings, url: str, after: int) -> Page:
    """Return the page of a recorder's journal that begins after the seq `after`.

    Raises:
        Retryable: the recorder does not answer, or not with a page.
    """
    try:
        request = Request(f"{url}/journal?after={after}", headers=settings.bearer)  # noqa: S310  # settings: http(s)
        with urlopen(request, timeout=REQUEST_TIMEOUT_S, context=web_context(settings, url)) as response:  # noqa: S310
            return decode_page(response.read())
    except (OSError, HTTPException, msgspec.MsgspecError) as exc:
        reason = exc.reason if isinstance(exc, URLError) else exc
        raise Retryable(f"the recorder at {url} does not tell its journal ({reason}); is it up? See `manifold status`") from exc
