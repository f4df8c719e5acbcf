"""Reloads a server's certificate when its file is renewed."""

import asyncio
import ssl
from pathlib import Path

import structlog

from manifold.contracts.tls import TlsFiles
from manifold.runtime.tls import web_server_context

CHECK_INTERVAL_S = 1.0

log = structlog.get_logger(__name__)


def written_at(file: str) -> int:
    """Return the file's modification time in ns, which changes when the file is renewed.

    Raises:
        OSError: the file cannot be read.
    """
    return Path(file).stat().st_mtime_ns


async def keep_renewed(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Reload certificate and key into `context` whenever their files have changed, for new connections. Runs until cancelled."""
    watched = [file for file in (files.certificate, files.key) if file]
    loaded_times = [written_at(file) for file in watched]
    is_readable = True
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        try:
            current_times = [written_at(file) for file in watched]
            if current_times != loaded_times:
                web_server_context(files)  # raises on a partial file or a wrong key, before the context in use is changed
                context.load_cert_chain(files.certificate, files.key or None)
                loaded_times = current_times
                log.info("certificate renewed", certificate=files.certificate)
            is_readable = True
        except OSError as exc:  # the next check retries
            if is_readable:
                fields = {"certificate": files.certificate, "key": files.key, "reason": str(exc)}
                log.warning("renewed certificate or key cannot be read; the old ones stay in use", **fields)
            is_readable = False
