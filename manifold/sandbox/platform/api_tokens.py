"""The named token with which the embedded Airflow gives orders to campaigns for its users.

The token has a file of its own; the API's file of named tokens has its digest.
"""

import hashlib

from manifold.runtime import secret_files
from manifold.settings import Settings

AIRFLOW_TOKEN = "airflow_api_token"  # noqa: S105  # file name
NAME, RIGHTS = "airflow", "read,approve,brake,delegate"


def create_missing(settings: Settings) -> None:
    """Generate Airflow's token, and the API's file of named tokens with the token's digest, where they do not exist.

    Does nothing if Airflow is not started, or settings name another token or API. An existing file of named tokens is left
    alone: it may have other lines, and a line that somebody has removed must not come back.
    """
    if not settings.with_airflow or _is_configured_elsewhere(settings):
        return
    token = secret_files.get_or_create(settings.home, AIRFLOW_TOKEN)
    digest = hashlib.sha256(token.encode()).hexdigest()
    secret_files.get_or_create(settings.home, secret_files.API_TOKENS, lambda: f"{NAME}:{digest}:{RIGHTS}")


def token_of_airflow(settings: Settings) -> str:
    """Return the generated token; empty if none was generated, or settings name another token or API."""
    if _is_configured_elsewhere(settings):
        return ""
    return secret_files.read(settings.home, AIRFLOW_TOKEN)


def _is_configured_elsewhere(settings: Settings) -> bool:
    return bool(settings.api_url or settings.api_tokens_file or settings.api_token.get_secret_value())
