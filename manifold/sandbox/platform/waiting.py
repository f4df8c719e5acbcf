"""Waits until the started programs are healthy, or one of them keeps failing."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from manifold.contracts.errors import Permanent, Retryable
from manifold.sandbox.platform import supervisord
from manifold.sandbox.platform.health import Check, check
from manifold.sandbox.platform.programs import Program
from manifold.sandbox.platform.supervisord import HomeLayout
from manifold.settings import Settings

Progress = Callable[[str, str], None]  # called on each change with a program's name (or `platform`) and its new state

_MAX_STARTS = 4  # a program that is not running after this many starts is failing
_POLL_INTERVAL_S = 0.2
_LOG_LINES = 15


def wait_healthy(
    layout: HomeLayout,
    settings: Settings,
    wanted: Sequence[Program],
    progress: Progress,
    within_s: float,
    preparation: "Future[None] | None" = None,
) -> None:
    """Wait until all programs are healthy at the same time.

    `preparation` is what the caller runs in a thread meanwhile (None: nothing): its error is raised, but its end is not awaited.

    Raises:
        Permanent: the supervisor has ended, or a program keeps failing.
        Retryable: some programs are not healthy within `within_s` seconds; the message has the reasons and the ends of the logs.
    """
    deadline = time.monotonic() + within_s
    reported: dict[str, str] = {}
    start_times: dict[str, set[int]] = {program.name: set() for program in wanted}
    checks: dict[str, Check] = {}
    to_check = wanted
    while True:
        checks |= check(to_check, settings)
        for name, latest in checks.items():
            state = "healthy" if latest.healthy else "starting"
            if reported.get(name) != state:
                progress(name, state)
                reported[name] = state
        unhealthy = [program for program in wanted if not checks[program.name].healthy]
        were_all_checked = len(to_check) == len(wanted)
        if not unhealthy and were_all_checked:
            return
        if not unhealthy:
            to_check = wanted  # the last checks of some programs are older: check all programs at the same time
            continue
        to_check = unhealthy  # checks of healthy programs would slow down the start of the others
        if preparation is not None and preparation.done():
            preparation.result()  # raises its error at once
        _raise_if_failing(layout, wanted, start_times)
        if time.monotonic() > deadline:
            raise Retryable(_timeout_message(layout, wanted, checks, within_s))
        time.sleep(_POLL_INTERVAL_S)


def _raise_if_failing(layout: HomeLayout, wanted: Sequence[Program], start_times: dict[str, set[int]]) -> None:
    """Raise Permanent if the supervisor has ended, or a program keeps failing; record each program's start in `start_times`."""
    if layout.supervisor() is None:
        raise Permanent(f"the supervisor has ended; see {layout.logs}/supervisord.log")
    states = supervisord.states(layout)
    for program in wanted:
        state = states.get(program.name)
        if state is None:
            continue  # the supervisor has not answered; it may be starting
        start_times[program.name].add(state.started)
        if state.state != "RUNNING" and len(start_times[program.name]) >= _MAX_STARTS:
            raise Permanent(f"{program.name} does not stay up ({state.reason or state.state}); {_last_lines(layout, program)}")


def _timeout_message(layout: HomeLayout, wanted: Sequence[Program], checks: Mapping[str, Check], within_s: float) -> str:
    """Return the message that names the unhealthy programs, with their reasons and the ends of their logs."""
    unhealthy = [program for program in wanted if not checks[program.name].healthy]
    names = ", ".join(program.name for program in unhealthy)
    reasons = [f"{program.name}: {checks[program.name].reason}; {_last_lines(layout, program)}" for program in unhealthy]
    return "\n".join([f"not healthy within {within_s:g} s: {names}", *reasons])


def _last_lines(layout: HomeLayout, program: Program) -> str:
    """Return the last lines of the program's log, with its path, for an error message."""
    file = layout.logs / program.log_name
    try:
        lines = file.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    except OSError as exc:
        return f"{file} cannot be read ({exc.strerror})"
    if not lines:
        return f"{file} is empty"
    return "\n  ".join([f"the end of {file}:", *lines])
