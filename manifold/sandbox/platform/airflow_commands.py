"""Runs Airflow commands as forks of this process, which has imported Airflow once for all of them.

A separate process would spend most of its startup on the same imports, and most of its exit on tearing them down. Only `load`
imports Airflow, by name, so that importing this module stays cheap.
"""

import gc
import os
import runpy
import signal
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module

import psutil
from setproctitle import getproctitle, setproctitle

from manifold.contracts.errors import Permanent

# Modules needed by several commands. None starts a thread, opens the database or reads a DAG: a fork keeps no threads.
SHARED = (
    "airflow.__main__",
    "airflow.cli.commands.api_server_command",
    "airflow.cli.commands.dag_processor_command",
    "airflow.cli.commands.db_command",
    "airflow.cli.commands.pool_command",
    "airflow.cli.commands.scheduler_command",
    "airflow.executors.local_executor",
)
# Modules of a single command that can be imported in advance; for the server, this creates its application.
ITS_OWN = {"api-server": ("airflow.api_fastapi.main",)}
ASKED_TO_END = (signal.SIGTERM, signal.SIGINT)


def load(env: Mapping[str, str]) -> None:
    """Import the modules for `start`, and write Airflow's configuration file if missing: all commands share its generated keys.

    From now on this process runs as part of Airflow, with `env` as its environment.

    Raises:
        Permanent: an import has started a thread, which forks would lack.
    """
    getproctitle()  # initialises setproctitle, which locates the title by the original environment
    os.environ.clear()
    os.environ.update(env)
    _import(SHARED)
    import_module("airflow.configuration").write_default_airflow_configuration_if_needed()
    if (threads := psutil.Process().num_threads()) > 1:
        raise Permanent(f"Airflow cannot be started: importing it has started {threads - 1} threads")


def start(arguments: tuple[str, ...]) -> psutil.Process:
    """Fork a process that runs `airflow` with these arguments, and reads nothing from standard input."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # otherwise the fork would write buffered output again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ASKED_TO_END)  # the fork must reset the handlers first
    if (pid := os.fork()) == 0:
        _run_and_exit(arguments)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return psutil.Process(pid)


def status_of(process: psutil.Process) -> int | None:
    """Return the exit status of a process from `start`, negative for a signal; None: it is running."""
    try:
        status: int | None = process.wait(0)
    except psutil.TimeoutExpired:
        return None
    return status


def _run_and_exit(arguments: tuple[str, ...]) -> None:
    """Run the command, then exit without cleanup, which would take an API server a second."""
    status = 1
    try:
        for number in ASKED_TO_END:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKED_TO_END)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = ["airflow", *arguments]
        setproctitle(" ".join(sys.argv))  # for process listings
        _import(ITS_OWN.get(arguments[0], ()))
        runpy.run_module("airflow", run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as exc:
        status = _status(exc)
    except BaseException:  # noqa: BLE001  # like the interpreter at exit
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def _import(modules: Iterable[str]) -> None:
    """Import modules with garbage collection off, which saves a quarter of the time, then freeze the heap."""
    gc.disable()
    for module in modules:
        import_module(module)
    gc.freeze()
    gc.enable()


def _status(asked: SystemExit) -> int:
    if asked.code is None or isinstance(asked.code, int):
        return asked.code or 0
    sys.stderr.write(f"{asked.code}\n")
    return 1
