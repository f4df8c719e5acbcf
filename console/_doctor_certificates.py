"""What `manifold doctor` says of certificates: the sandbox's own, or those that the settings of an environment name."""

from datetime import UTC, datetime, timedelta

from adapters.expiry import ends_at, files_of
from console._diagnostic import Diagnostic
from contracts.settings import Settings

SPARE = timedelta(days=14)  # until one ends, as in the alert rules
CHECK = "certificates"


def certificates(settings: Settings) -> Diagnostic | None:
    """Whether all of them hold for a while; None where nothing here has one."""
    return _of_sandbox(settings) if settings.tls else _of_settings(settings)


def _of_sandbox(settings: Settings) -> Diagnostic:
    """Whether CAs, certificates and the list of what is revoked are renewed in time."""
    from sandbox.platform.certificates import overdue  # the library of certificates takes a while that others need not wait

    remedy = f"make up; why nobody renews them is in {settings.home}/logs/keeper.log"
    try:
        late = overdue(settings)
    except (OSError, ValueError) as exc:
        late = [" ".join(str(exc).split())[:200]]
    return Diagnostic(CHECK, not late, "; ".join(late) or "none is about to end", remedy)


def _of_settings(settings: Settings) -> Diagnostic | None:
    ends = {file: ends_at(file, kind) for file, kind in files_of(settings, settings.mqtt_username_recorder).items()}
    if not ends:
        return None
    until = (datetime.now(UTC) + SPARE).timestamp()
    late = [f"{file} ends {_day(end)}" if end else f"{file} cannot be read" for file, end in ends.items() if end < until]
    remedy = "renew what it names: whoever shows one that has ended, or is shown one, is refused"
    return Diagnostic(CHECK, not late, "; ".join(late) or f"the first ends {_day(min(ends.values()))}", remedy)


def _day(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d}"
