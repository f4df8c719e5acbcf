"""Starts and stops the embedded platform, and reports its status. Its state is kept under `settings.home`."""

import fcntl
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from urllib.parse import quote

import psutil

from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.http_access import require_token
from manifold.contracts.signals.rights import RIGHTS
from manifold.messaging.amqp import USER, password_file
from manifold.runtime import secret_files
from manifold.sandbox.platform import api_tokens, supervisord
from manifold.sandbox.platform.addresses import Addresses
from manifold.sandbox.platform.health import Check, Status, status
from manifold.sandbox.platform.ports import require_free
from manifold.sandbox.platform.processes import end, family, runs, wait_gone
from manifold.sandbox.platform.programs import Program, programs
from manifold.sandbox.platform.supervisord import HomeLayout
from manifold.sandbox.platform.waiting import Progress, wait_healthy
from manifold.settings import Settings

START_S = 180.0  # on a first start, Airflow creates its database
STOP_S = 90.0
END_S = 15.0  # grace period of a left-over process, in seconds
_URL_PATH_CHARACTERS = "/:@!$&'()*+,;="  # allowed unescaped in a URL's path, in addition to letters, digits and _.-~


def up(
    settings: Settings,
    *,
    airflow: bool | None = None,
    not_waiting_for: Collection[str] = (),
    progress: Progress = lambda *_: None,
    within_s: float = START_S,
) -> Addresses:
    """Start the platform in the background, and wait until all of it is healthy. If it is already up, only wait.

    Args:
        settings: the platform's settings; every child gets all of them.
        airflow: whether to start Airflow; None: by the setting `with_airflow`.
        not_waiting_for: kinds of programs that may become healthy later; call `up` again to wait for them.
        progress: called with each change of a program's state.
        within_s: timeout in seconds.

    Raises:
        Permanent: the home's path has unsupported characters, the services' HTTP would be reachable without a token, a port is in
            use, a server is not installed, the running platform has other settings, or a program keeps failing.
        Retryable: another `up` or `down` is running, or some programs were not healthy in time.

    After an error, or when interrupted, everything that this call has started is stopped again.
    """
    if airflow is not None:
        settings = settings.model_copy(update={"with_airflow": airflow})
    _require_plain_path(settings.home)
    for host, setting in ((settings.host, "HOST"), (settings.api_listens, "API_HOST")):
        require_token(host, settings.http_token.get_secret_value(), setting)
    layout = HomeLayout(settings.home)
    wanted = programs(settings)
    awaited = [program for program in wanted if program.kind not in not_waiting_for]
    with _locked(layout):
        if layout.supervisor():
            _require_same_settings(layout, settings)
            progress("platform", "is already up")
            wait_healthy(layout, settings, awaited, progress, within_s)
            return Addresses.of(settings)
        _end_left_overs(layout, progress)
        for host in dict.fromkeys((settings.host, settings.api_listens, settings.loopback)):
            require_free(host, [port for program in wanted for port in program.ports])
        try:
            _start(layout, settings, wanted, awaited, progress, within_s)
        except BaseException:  # also KeyboardInterrupt: a start that fails or is interrupted must leave nothing running
            _end(layout, lambda *_: None, STOP_S)
            raise
    return Addresses.of(settings)


def down(settings: Settings, *, progress: Progress = lambda *_: None, within_s: float = STOP_S) -> bool:
    """End all processes of this platform, and no others, and wait until they are gone; return whether any was running.

    Processes that have outlived a killed supervisor are ended too, because their pids are recorded.

    Raises:
        Retryable: another `up` or `down` is running, or a process survives SIGKILL.
    """
    layout = HomeLayout(settings.home)
    if not layout.run.exists():
        return False
    with _locked(layout):
        return _end(layout, progress, within_s)


def _start(
    layout: HomeLayout,
    settings: Settings,
    wanted: Sequence[Program],
    awaited: Sequence[Program],
    progress: Progress,
    within_s: float,
) -> None:
    """Generate missing secrets, start the wanted programs, and wait until the awaited programs are healthy.

    Meanwhile a thread runs `prepare`, which creates missing tables and, on a first start, marks the queues as loaded.
    """
    from manifold.sandbox.platform.bootstrap import nothing_recorded, prepare

    fresh = nothing_recorded(settings)
    api_tokens.create_missing(settings)
    if any(program.kind == "signals" for program in wanted):
        _create_missing_signal_secrets(settings)
    elif settings.with_signals:
        progress("signals", "left out: rabbitmq-server is not installed (Debian: apt-get install rabbitmq-server)")
    if settings.tls:
        from manifold.sandbox.platform import certificates  # imported here, because the import is slow

        certificates.create_missing(settings)
    supervisord.start(layout, settings, wanted)
    layout.save_settings(settings)
    progress("platform", f"{len(wanted)} programs started")
    given_up = Event()
    with ThreadPoolExecutor(1) as pool:
        preparation = pool.submit(prepare, settings, fresh=fresh, given_up=given_up)
        try:
            wait_healthy(layout, settings, awaited, progress, within_s, preparation)
        except BaseException:
            given_up.set()  # otherwise `prepare` would wait for Redis, and the pool for `prepare`
            raise
        preparation.result()


def _create_missing_signal_secrets(settings: Settings) -> None:
    """Generate the missing secrets of signals. Each home has its own; there are no defaults."""
    from manifold.lake.key_ring import new_key_line  # imported here, because the import is slow, and `status` does not need it

    if not settings.signals_hmac_secret.get_secret_value():
        secret_files.get_or_create(settings.home, secret_files.HMAC)
    if not settings.signals_keys.get_secret_value() and not settings.signals_keys_file:
        secret_files.get_or_create(settings.home, secret_files.KEYS, new_key_line)
    if not settings.signals_amqp_url.get_secret_value():
        for user in (USER, *RIGHTS):
            secret_files.get_or_create(settings.home, password_file(user))


def _end(layout: HomeLayout, progress: Progress, within_s: float) -> bool:
    """End the supervisor, which ends its programs, and all left-over processes; return whether any process was running."""
    supervisor = layout.supervisor()
    process = supervisor.process() if supervisor else None
    if process is not None:
        progress("platform", "stopping")
        process.terminate()  # the supervisor stops the services first, then the servers
        is_still_running = bool(wait_gone([process], within_s))
        if is_still_running:
            process.kill()
            wait_gone([process], END_S)
    had_left_overs = _end_left_overs(layout, progress)
    return had_left_overs or process is not None


def _end_left_overs(layout: HomeLayout, progress: Progress) -> bool:
    """End processes left by an earlier supervisor, and remove its files. Return whether there were any processes."""
    left_overs: dict[int, psutil.Process] = {}  # by pid, because families overlap
    for record in layout.recorded().values():
        left_overs |= {process.pid: process for process in family(record)}
    if left_overs:
        progress("platform", f"ending {len(left_overs)} left-over processes")
        survivors = [process for process in end(left_overs.values(), END_S) if runs(process)]
        if survivors:
            pids = ", ".join(str(process.pid) for process in survivors)
            raise Retryable(f"these processes do not end: {pids}; look at them, then try again")
    for file in [*layout.run.glob("*.process"), layout.socket, layout.pid_file, layout.settings_file]:
        file.unlink(missing_ok=True)
    return bool(left_overs)


def _require_plain_path(home: Path) -> None:
    """Raise Permanent if the home's path has characters that must be escaped in a URL."""
    escaped_characters = {character for character in str(home) if quote(character, safe=_URL_PATH_CHARACTERS) != character}
    if escaped_characters:
        odd = "".join(sorted(escaped_characters))
        raise Permanent(
            f"home={str(home)!r} has {odd!r} in it, which file:// URLs cannot hold; name a plain one: MANIFOLD_HOME=…"
        )


@contextmanager
def _locked(layout: HomeLayout) -> Iterator[None]:
    """Lock the home for one `up` or `down` at a time; the lock is released when the process ends."""
    for folder in (layout.run, layout.logs):
        folder.mkdir(parents=True, exist_ok=True)
    with (layout.run / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise Retryable(f"another `up` or `down` of {layout.home} is at work; try again when it has ended") from exc
        yield


def _require_same_settings(layout: HomeLayout, settings: Settings) -> None:
    """Raise Permanent if the running platform was started with other settings.

    Secrets are saved masked, so a change from one secret to another is not noticed.
    """
    running, wanted = layout.started_with(), settings.model_dump(mode="json")
    differences = [
        f"{name}={running[name]!r}, not {wanted[name]!r}" for name in wanted if name in running and running[name] != wanted[name]
    ]
    if differences:
        others = "; ".join(differences)
        raise Permanent(f"the platform in {layout.home} is up with {others}; run `manifold down` first, or leave these settings")


__all__ = ["Addresses", "Check", "Progress", "Status", "down", "status", "up"]
