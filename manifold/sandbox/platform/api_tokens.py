"""The named token with which the embedded Airflow orders campaigns for its users, and the API's file that has its digest."""

import hashlib

from manifold.runtime import secret_files
from manifold.settings import Settings

AIRFLOW_TOKEN = "airflow_api_token"  # noqa: S105  # file name
NAME, RIGHTS = "airflow", "read,approve,brake,delegate"


def make_up(settings: Settings) -> None:
    """Generate the token and the API's file, unless they exist, or settings name others.

    A file that exists is left alone: people have lines in it, and a line that was taken out stays out.
    """
    if not settings.with_airflow or settings.api_url or settings.api_tokens_file or settings.api_token.get_secret_value():
        return
    token = secret_files.get_or_create(settings.home, AIRFLOW_TOKEN)
    digest = hashlib.sha256(token.encode()).hexdigest()
    secret_files.get_or_create(settings.home, secret_files.API_TOKENS, lambda: f"{NAME}:{digest}:{RIGHTS}")


def token_of_airflow(settings: Settings) -> str:
    """Return the generated token; empty if settings name another, or none was generated."""
    if settings.api_url or settings.api_tokens_file or settings.api_token.get_secret_value():
        return ""
    return secret_files.read(settings.home, AIRFLOW_TOKEN)
