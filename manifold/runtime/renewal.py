"""Reloads a server's certificate when it is renewed."""

import asyncio
import ssl
from pathlib import Path

import structlog

from manifold.contracts.tls import TlsFiles
from manifold.runtime.tls import web_server_context

LOOK_S = 1.0  # between two checks of the files

log = structlog.get_logger(__name__)


def written_at(file: str) -> int:
    """Return the modification time in ns; it changes when the file is renewed.

    Raises:
        OSError: the file cannot be read.
    """
    return Path(file).stat().st_mtime_ns


async def keep_renewed(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Reload the certificate into `context` whenever its files change, for new connections; runs until cancelled."""
    pair = [file for file in (files.certificate, files.key) if file]
    shown = [written_at(file) for file in pair]
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            if (now := [written_at(file) for file in pair]) != shown:
                web_server_context(files)  # validate first: a partial file or mismatched key would leave the context half updated
                context.load_cert_chain(files.certificate, files.key or None)
                shown = now
        except OSError as exc:  # retried at the next check
            log.warning("renewed certificate cannot be read; the old one stays in use", file=files.certificate, reason=str(exc))
