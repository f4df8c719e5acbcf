"""Fast starts of Python services: a process that has imported a service forks each start of it.

A fork runs what `python -m <module>` runs, in its own process with its own environment, log and arguments; only the imports, most
of the CPU time of a start, are done once per module and test process. What a supervisor starts, starts cold.
"""

import atexit
import gc
import importlib
import importlib.util
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

ROOT = Path(__file__).parents[2]
LOOK_S, LONGEST_PAUSE_S = 0.005, 0.05


class Forked:
    """A forked process with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, parent: "Parent", pid: int) -> None:
        self._parent, self.pid = parent, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        if self.returncode is None:
            self.returncode = self._parent.ask(poll=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it had not ended after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = LOOK_S
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            time.sleep(pause)
            pause = min(pause * 1.2, LONGEST_PAUSE_S)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it (`kill -9`)."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)


class Parent:
    """The process that has imported one module, and further ones that it needs, and forks its starts; it ends with this one."""

    def __init__(self, module: str, *further: str) -> None:
        command = [sys.executable, "-m", "tests.support.warm", module, *further]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self._asking = threading.Lock()
        atexit.register(self.end)

    def start(self, arguments: list[str], log: Path, env: Mapping[str, str], *, errors: Path | None = None) -> Forked:
        """Start a process with the environment `env`; its output is appended to `log`, or its standard error to `errors`."""
        pid = self.ask(arguments=arguments, log=str(log), errors=str(errors or log), env=dict(env))
        assert pid is not None
        return Forked(self, pid)

    def ask(self, **question: Any) -> int | None:
        """The answer to one request."""
        pipe_in, pipe_out = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)
        with self._asking:
            pipe_in.write(json.dumps(question) + "\n")
            pipe_in.flush()
            answer: int | None = json.loads(pipe_out.readline())
        return answer

    def end(self) -> None:
        """End it; processes that it started continue."""
        self._process.kill()
        self._process.wait()


_parents: dict[str, Parent] = {}
_making = threading.Lock()


def parent_of(module: str, *further: str) -> Parent:
    """The process that forks starts of `python -m module`."""
    with _making:
        if module not in _parents:
            _parents[module] = Parent(module, *further)
    return _parents[module]


def fork_of(module: str, arguments: list[str], log: Path, env: Mapping[str, str], further: Sequence[str] = ()) -> Forked:
    """A forked start of `python -m module` with the environment of this process plus `env`."""
    return parent_of(module, *further).start(arguments, log, os.environ | env)


def _fork(module: str, question: dict[str, Any], answers: IO[str]) -> int:
    """The child's process id; does not return in the child."""
    answers.flush()
    pid = os.fork()
    if pid:
        return pid
    os.environ.clear()
    os.environ.update(question["env"])
    out, err = (os.open(question[name], os.O_WRONLY | os.O_APPEND | os.O_CREAT) for name in ("log", "errors"))
    for stream, number in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(stream, number)
    os.closerange(3, 256)  # the pipes belong to its parent
    sys.argv = [module, *question["arguments"]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    raise SystemExit(0)


def _poll(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def main(module: str, *further: str) -> None:
    """Answer requests, one JSON object per line, until end of input."""
    found = importlib.util.find_spec(module)
    assert found is not None
    entry = module if found.submodule_search_locations is None else f"{module}.__main__"
    for name in (entry, *further):
        importlib.import_module(name)
    del sys.modules[entry]  # each child runs it
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    while line := sys.stdin.readline():
        question = json.loads(line)
        answer = _poll(question["poll"]) if "poll" in question else _fork(module, question, answers)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
