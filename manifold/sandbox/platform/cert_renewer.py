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

CHECK_INTERVAL_S = 600.0  # between two checks; a renewal is due days before the old certificate expires
RETRY_DELAY_S = 5.0  # before the next try after a failure, such as a full disk or an unavailable Redis

log = structlog.get_logger(__name__)


def run(settings: Settings, stop: Event) -> None:
    """Renew certificates, and make Redis reload its own, periodically until `stop`; a failed step is retried soon."""
    loaded_version = None  # version of the files that this process last made Redis load

    def renew() -> None:
        if done := certificates.maintain(settings):
            log.info("CAs, certificates or revocation list renewed", renewed=done)

    def reload_redis() -> None:
        """Make Redis reload its certificates if any process has changed the files since the last reload.

        The first call always reloads: an earlier renewer may have been killed after it wrote the files.
        """
        nonlocal loaded_version
        version = redis_certificates.version(settings)
        if version != loaded_version:
            redis_certificates.reload(settings)
            loaded_version = version

    has_own_redis = not settings.redis_url.get_secret_value()  # a Redis elsewhere has certificates of its own
    steps = (renew, reload_redis) if has_own_redis else (renew,)
    while not stop.is_set():
        pause_s = CHECK_INTERVAL_S
        for step in steps:
            try:
                step()
            except (OSError, ValueError, ManifoldError, RedisError) as exc:
                log.warning("certificate maintenance failed; retrying", step=step.__name__, reason=str(exc))
                pause_s = RETRY_DELAY_S
        stop.wait(pause_s)


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
