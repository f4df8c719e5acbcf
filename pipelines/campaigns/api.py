"""A client of Manifold's API, which shows the named token of the jobs."""

from typing import Any

import httpx

from manifold.contracts.errors import Permanent, Retryable
from manifold.runtime.tls import verified
from manifold.settings import Settings

WAIT_S = 60.0


class Api:
    """Asks the API about campaigns. `by`: the user for whom it orders."""

    def __init__(self, settings: Settings, by: str = "") -> None:
        token = settings.api_token.get_secret_value()
        self._url = f"{settings.api}/api/v1"
        self._headers = {"Authorization": f"Bearer {token}"} if token else settings.bearer
        self._headers |= {"On-Behalf-Of": by} if by else {}
        self._trust = verified(settings, self._url)

    def get(self, path: str) -> Any:
        """The answer under /api/v1.

        Raises:
            Retryable: the API does not answer, or cannot now.
            Permanent: it refuses; the message says why.
        """
        return self._ask("GET", path)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The answer to an order; it raises what `get` does."""
        return self._ask("POST", path, json=body)

    def _ask(self, method: str, path: str, **body: Any) -> Any:
        url = f"{self._url}{path}"
        try:
            answer = httpx.request(method, url, headers=self._headers, timeout=WAIT_S, verify=self._trust, **body)
        except (httpx.HTTPError, OSError) as exc:
            raise Retryable(f"{url} does not answer ({exc}); see MANIFOLD_API_URL and `manifold status`") from exc
        if answer.is_success:
            return answer.json()
        reason = _reason(answer)
        if answer.is_server_error:
            raise Retryable(f"{method} {url}: {answer.status_code}: {reason}")
        raise Permanent(f"{method} {url}: {answer.status_code}: {reason}")


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
