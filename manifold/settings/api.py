"""Settings of the HTTP API."""

from typing import Annotated

from pydantic import Field, SecretStr

from manifold.settings.field import Port, Seconds, Secret
from manifold.settings.field import setting as _s
from manifold.settings.shared import SharedSettings


class ApiSettings(SharedSettings):
    """Where the API listens, and whom it lets do what."""

    api_host: str = _s("", "address on which the API listens; empty: as host says")
    api_port: Port = _s(9104, "HTTP of the API: /api/v1, /metrics, /healthz")
    api_url: Annotated[str, Field(pattern=r"^(https?://[^\s,]+)?$")] = _s(
        "", "where the console and Airflow's page find the API; empty: http(s)://<api_host>:<api_port>"
    )
    api_tokens_file: str = _s(
        "",
        "file of the API's named tokens, a line each: <name>:<SHA-256 of the token>:<rights>; rights: read, propose, approve,"
        " brake, delegate, rewind, with commas between; read again when it changes; empty: <home>/secrets/api_tokens, which"
        " `make up` makes for Airflow; without that file nobody orders campaigns over HTTP",
    )
    api_token: Secret = _s(
        SecretStr(""),
        "the named token that jobs of Airflow send to the API for its users, with the rights read, approve, brake, delegate;"
        " empty: the one that `make up` generates, where api_tokens_file is empty too",
    )
    api_timeout_seconds: Seconds = _s(20.0, "how long the API reads lake and archive for one answer")

    @property
    def api_listens(self) -> str:
        """Address on which the API listens."""
        return self.api_host or self.host

    @property
    def api(self) -> str:
        """Base URL of the API."""
        scheme = "https" if self.http_tls_files.certificate else "http"
        return self.api_url.rstrip("/") or f"{scheme}://{self.api_listens}:{self.api_port}"
