"""Waits until the started programs are healthy, or fail for good."""

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

_MAX_STARTS = 4  # starts of one program after which it counts as failing
_LOOK_S = 0.2
_LOG_LINES = 15


def wait_healthy(
    layout: HomeLayout,
    settings: Settings,
    wanted: Sequence[Program],
    progress: Progress,
    within_s: float,
    prepared: "Future[None] | None" = None,
) -> None:
    """Wait until all programs are healthy. If the future `prepared` fails, raise its error; it is not awaited otherwise.

    Raises:
        Permanent: the supervisor has ended, or a program keeps failing.
        Retryable: not all are healthy within `within_s` seconds; the message has the reasons and the ends of the logs.
    """
    deadline = time.monotonic() + within_s
    reported: dict[str, str] = {}
    starts: dict[str, set[int]] = {program.name: set() for program in wanted}
    checks: dict[str, Check] = {}
    asked = wanted
    while True:
        checks |= check(asked, settings)
        for name, now in checks.items():
            word = "healthy" if now.healthy else "starting"  # the reason is only reported after the timeout
            if reported.get(name) != word:
                progress(name, word)
                reported[name] = word
        ill = [program for program in wanted if not checks[program.name].healthy]
        if not ill and len(asked) == len(wanted):
            return
        if not ill:
            asked = wanted  # recheck all of them at the same time
            continue
        asked = ill  # do not load the healthy ones with checks while the others start
        if prepared is not None and prepared.done():
            prepared.result()  # raise a lake error at once instead of waiting
        _require_staying(layout, wanted, starts)
        if time.monotonic() > deadline:
            raise Retryable(_not_in_time(layout, wanted, checks, within_s))
        time.sleep(_LOOK_S)


def _require_staying(layout: HomeLayout, wanted: Sequence[Program], starts: dict[str, set[int]]) -> None:
    if layout.supervisor() is None:
        raise Permanent(f"the supervisor has ended; see {layout.logs}/supervisord.log")
    states = supervisord.states(layout)
    for program in wanted:
        state = states.get(program.name)
        if state is None:
            continue
        starts[program.name].add(state.started)
        if state.state != "RUNNING" and len(starts[program.name]) >= _MAX_STARTS:
            raise Permanent(f"{program.name} does not stay up ({state.reason or state.state}); {_last_lines(layout, program)}")


def _not_in_time(layout: HomeLayout, wanted: Sequence[Program], checks: Mapping[str, Check], within_s: float) -> str:
    ill = [program for program in wanted if not checks[program.name].healthy]
    parts = [f"{program.name}: {checks[program.name].reason}; {_last_lines(layout, program)}" for program in ill]
    return "\n".join([f"not healthy within {within_s:g} s: {', '.join(program.name for program in ill)}", *parts])


def _last_lines(layout: HomeLayout, program: Program) -> str:
    file = layout.logs / program.log_name
    try:
        lines = file.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    except OSError:
        lines = []
    return "\n  ".join([f"the end of {file}:", *lines]) if lines else f"{file} is empty"
