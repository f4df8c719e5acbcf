"""A server's certificate, renewed while it serves."""

import asyncio
import ssl
from pathlib import Path

import structlog

from adapters.tls import web_server_context

LOOK_S = 1.0  # between two looks at a certificate that may have been renewed

log = structlog.get_logger(__name__)


def written_at(certificate: str) -> int:
    """When the file was written: another time, where the certificate was renewed.

    Raises:
        OSError: it cannot be read.
    """
    return Path(certificate).stat().st_mtime_ns


async def keep_renewed(context: ssl.SSLContext, certificate: str) -> None:
    """Have a server show what `certificate` holds from the next connection on, whenever that is renewed; until cancelled."""
    shown = written_at(certificate)
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            if (now := written_at(certificate)) != shown:
                web_server_context(certificate)  # of half a file the other would keep a certificate without its key
                context.load_cert_chain(certificate)
                shown = now
        except OSError as exc:  # the next look may find a whole one
            log.warning("certificate cannot be read", reason=str(exc))
