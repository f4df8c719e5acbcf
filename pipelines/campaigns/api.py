"""A client of Manifold's API, which authenticates with the jobs' own token."""

from typing import Any

import httpx

from manifold.contracts.errors import Permanent, Retryable
from manifold.runtime.tls import verified
from manifold.settings import Settings

TIMEOUT_S = 60.0


class Api:
    """Sends requests about campaigns to the API. Orders are given in the name of the user `by`."""

    def __init__(self, settings: Settings, by: str = "") -> None:
        token = settings.api_token.get_secret_value()
        self._url = f"{settings.api}/api/v1"
        # Without a token of the jobs' own, the one that all services share, if any: the API accepts no orders with it.
        self._headers = {"Authorization": f"Bearer {token}"} if token else settings.bearer
        if by:
            self._headers = self._headers | {"On-Behalf-Of": by}
        self._tls_context = verified(settings, self._url)

    def get(self, path: str) -> Any:
        """Send a GET request to `path`, which is relative to /api/v1, and return the JSON of the response.

        Raises:
            Retryable: the API does not answer, or answers with a server error.
            Permanent: the API refuses the request; the message says why.
        """
        return self._request("GET", path)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Post an order to `path`, which is relative to /api/v1, and return the JSON of the response.

        Raises:
            Retryable: the API does not answer, or answers with a server error.
            Permanent: the API refuses the order; the message says why.
        """
        return self._request("POST", path, json=body)

    def _request(self, method: str, path: str, **options: Any) -> Any:
        """Send a request with these options of httpx, and return the JSON of a successful response."""
        url = f"{self._url}{path}"
        try:
            response = httpx.request(method, url, headers=self._headers, timeout=TIMEOUT_S, verify=self._tls_context, **options)
        except (httpx.HTTPError, OSError) as exc:
            raise Retryable(f"{url} does not answer ({exc}); see MANIFOLD_API_URL and `manifold status`") from exc
        if response.is_success:
            return response.json()
        message = f"{method} {url}: {response.status_code}: {_error_detail(response)}"
        if response.is_server_error:
            raise Retryable(message)
        raise Permanent(message)


def _error_detail(response: httpx.Response) -> str:
    """The `detail` of an error response or, if it has none, the beginning of its text."""
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200]
