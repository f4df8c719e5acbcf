"""Describes why a request failed, for log lines: without the URL, which may contain a password."""

import httpx


def describe_failure(exc: Exception) -> str:
    """Continue a sentence whose subject is the URL: it answers an HTTP status, did not answer, or cannot be used at all."""
    if isinstance(exc, httpx.HTTPStatusError):
        return f"answers HTTP {exc.response.status_code}"
    error = type(exc).__name__  # the error's text may contain the URL
    if isinstance(exc, httpx.TransportError):
        return f"did not answer: {error}"
    return f"cannot be used: {error}"  # such as a file or folder that cannot be written
