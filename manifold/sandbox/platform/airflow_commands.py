"""Airflow's commands as processes that begin as copies of this one, which has imported Airflow once for all of them.

Each by itself would take most of its start for the same imports, and most of its end for taking them apart again. Airflow is
imported by name, by `load` alone: whoever imports this room is spared it.
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

# What several of them need. None of it starts a thread, opens the database or reads a DAG: a copy has everything but threads.
SHARED = (
    "airflow.__main__",
    "airflow.cli.commands.api_server_command",
    "airflow.cli.commands.dag_processor_command",
    "airflow.cli.commands.db_command",
    "airflow.cli.commands.pool_command",
    "airflow.cli.commands.scheduler_command",
    "airflow.executors.local_executor",
)
# What one needs that can be imported before it runs; the server finds its application made.
ITS_OWN = {"api-server": ("airflow.api_fastapi.main",)}
ASKED_TO_END = (signal.SIGTERM, signal.SIGINT)


def load(env: Mapping[str, str]) -> None:
    """Import what `start` needs, and write Airflow's configuration file where there is none: all commands share its keys.

    From now on this process is one of Airflow's, and `env` is its environment.

    Raises:
        Permanent: something has started a thread; who begins as a copy would wait for it in vain.
    """
    getproctitle()  # finds out where a title is written, which it does by the environment that a process begins with
    os.environ.clear()
    os.environ.update(env)
    _import(SHARED)
    import_module("airflow.configuration").write_default_airflow_configuration_if_needed()
    if (threads := psutil.Process().num_threads()) > 1:
        raise Permanent(f"Airflow cannot be started: importing it has started {threads - 1} threads")


def start(arguments: tuple[str, ...]) -> psutil.Process:
    """`airflow` with these arguments, in a process of its own that reads nothing from standard input."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or a copy would write it again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ASKED_TO_END)  # or one that comes too early would be this process's
    if (pid := os.fork()) == 0:
        _become(arguments)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return psutil.Process(pid)


def status_of(process: psutil.Process) -> int | None:
    """The exit status of one that `start` gave, negative for the signal that ended it; None: it still runs."""
    try:
        status: int | None = process.wait(0)
    except psutil.TimeoutExpired:
        return None
    return status


def _become(arguments: tuple[str, ...]) -> None:
    """Run the command, then end without taking anything apart: a second of work for an API server."""
    status = 1
    try:
        for number in ASKED_TO_END:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKED_TO_END)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = ["airflow", *arguments]
        setproctitle(" ".join(sys.argv))  # for whoever looks at the processes
        _import(ITS_OWN.get(arguments[0], ()))
        runpy.run_module("airflow", run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as exc:
        status = _status(exc)
    except BaseException:  # noqa: BLE001  # as Python itself does at the end of a process
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def _import(modules: Iterable[str]) -> None:
    """Import them without looking for garbage meanwhile, which takes a quarter of it, and among what stays never again."""
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
