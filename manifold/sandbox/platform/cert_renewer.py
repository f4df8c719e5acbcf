"""`python -m manifold.sandbox.platform.cert_renewer`: renews CAs and certificates in time, while the platform runs with TLS."""

import signal
import sys
from threading import Event

import structlog
from redis.exceptions import RedisError

from manifold.contracts.errors import ManifoldError
from manifold.runtime.log import configure_logging
from manifold.sandbox.platform import certificates, redis_certificates
from manifold.settings import Settings, load_settings

LOOK_S = 600.0  # between two checks; a renewal has days of time
AGAIN_S = 5.0  # retry if Redis does not answer, or the disk is full

log = structlog.get_logger(__name__)


def run(settings: Settings, stop: Event) -> None:
    """Check periodically until `stop`; retry what fails."""
    loaded_version = None  # of the files that Redis last loaded, as far as this process knows

    def renew() -> None:
        if done := certificates.maintain(settings):
            log.info("certificates renewed", done=done)

    def reload_redis() -> None:
        """Make Redis reload its certificates if the files have changed since it loaded them, whoever wrote them.

        The first call always reloads: an earlier renewer may have been killed between writing the files and this step.
        """
        nonlocal loaded_version
        if (found := redis_certificates.version(settings)) != loaded_version:
            redis_certificates.reload(settings)
            loaded_version = found

    while not stop.is_set():
        pause = LOOK_S
        for step in (renew, reload_redis) if not settings.redis_url.get_secret_value() else (renew,):
            try:
                step()
            except (OSError, ValueError, ManifoldError, RedisError) as exc:
                log.warning("certificate renewal or reload failed", step=step.__name__, reason=str(exc))
                pause = AGAIN_S
        stop.wait(pause)


def main() -> int:
    """Run with the settings of the environment."""
    configure_logging("keeper")
    stop = Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    try:
        run(load_settings(), stop)
    except ManifoldError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
