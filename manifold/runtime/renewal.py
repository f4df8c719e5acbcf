"""Renews the certificate of a server while it serves."""

import asyncio
import ssl
from pathlib import Path

import structlog

from manifold.contracts.tls import TlsFiles
from manifold.runtime.tls import web_server_context

LOOK_S = 1.0  # between two looks at a certificate that may have been renewed

log = structlog.get_logger(__name__)


def written_at(file: str) -> int:
    """When the file was written: another time, where it was renewed.

    Raises:
        OSError: it cannot be read.
    """
    return Path(file).stat().st_mtime_ns


async def keep_renewed(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Have a server show what the files hold from the next connection on, whenever they are renewed; until cancelled."""
    pair = [file for file in (files.certificate, files.key) if file]
    shown = [written_at(file) for file in pair]
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            if (now := [written_at(file) for file in pair]) != shown:
                web_server_context(files)  # of half a file, or of another key, the server would keep half
                context.load_cert_chain(files.certificate, files.key or None)
                shown = now
        except OSError as exc:  # the next look may find a whole one
            log.warning("certificate cannot be read", reason=str(exc))
