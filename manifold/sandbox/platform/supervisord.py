"""The supervisor of the embedded platform: its configuration, its start, and the states of its programs."""

import hashlib
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
import xmlrpc.client
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.xmlrpc import SupervisorTransport

from manifold.contracts.errors import Permanent
from manifold.sandbox.platform.processes import Record
from manifold.sandbox.platform.programs import SERVERS, Program, command, environment, identity_of
from manifold.settings import PREFIX, Settings

SUPERVISORD = "supervisord"
_SOCKET_PATH_MAX = 90  # bytes; the OS limit is 103 to 107, and supervisord first binds a longer name
_NO_LIMIT = 1_000_000  # retry forever: the cause may go away later; the pauses grow by a second each
_START_S = 20.0
_FILES_MAX = 65536  # maximum limit of open files per program: tap and broker hold a socket per vehicle


class HomeLayout:
    """The folders of one platform, and the supervisor's files."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.run, self.logs = home / "run", home / "logs"  # records of running processes, and their logs
        self.config, self.pid_file = self.run / "supervisord.conf", self.run / "supervisord.pid"
        self.socket = _control_socket(self.run)
        self.settings_file = self.run / "settings.json"  # settings of the running platform, without secrets

    def remember(self, settings: Settings) -> None:
        """Save the settings of the started platform."""
        self.settings_file.write_text(json.dumps(settings.model_dump(mode="json"), indent=1))

    def started_with(self) -> dict[str, Any]:
        """Return the saved settings; empty if there are none."""
        try:
            found: dict[str, Any] = json.loads(self.settings_file.read_text())
        except (OSError, ValueError):
            return {}
        return found

    def record(self, name: str) -> Path:
        """Return the process record file of a program or the supervisor."""
        return self.run / f"{name}.process"

    def recorded(self) -> dict[str, Record]:
        """Return the records of all processes, running or not."""
        found = {file.stem: Record.read(file) for file in sorted(self.run.glob("*.process"))}
        return {name: record for name, record in found.items() if record is not None}

    def supervisor(self) -> Record | None:
        """Return the supervisor's record, if it is running."""
        record = Record.read(self.record(SUPERVISORD))
        return record if record and record.process() else None


def _control_socket(run: Path) -> Path:
    """Return the supervisor's socket; in the temporary folder if the home's path is too long."""
    path = run / "supervisord.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH_MAX:
        return path
    return Path(tempfile.gettempdir()) / f"manifold-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.ctl"


@dataclass(frozen=True, slots=True)
class ProgramState:
    """A program's state, as reported by the supervisor."""

    state: str  # STARTING, RUNNING, BACKOFF, STOPPING, STOPPED, EXITED, FATAL
    started: int  # Unix seconds of the last start; 0: never
    reason: str  # why it is not running; empty if it is, or if unknown


def start(layout: HomeLayout, settings: Settings, programs: Iterable[Program]) -> None:
    """Write the configuration and start the supervisor, which starts all programs at once.

    Raises:
        Permanent: the supervisor fails; the message is its own.
    """
    layout.config.write_text(configuration(layout, settings, list(programs)))
    layout.pid_file.unlink(missing_ok=True)
    order = [sys.executable, "-m", "supervisor.supervisord", "-c", str(layout.config)]
    answer = subprocess.run(  # daemonises once its configuration is read
        order, env=environment(settings), cwd=layout.run, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    record = _background(layout) if answer.returncode == 0 else None
    if record is None:
        raise Permanent(
            f"the supervisor does not start: {answer.stderr.strip() or answer.stdout.strip()} (see {layout.logs}/supervisord.log)"
        )
    record.write(layout.record(SUPERVISORD))


def _background(layout: HomeLayout) -> Record | None:
    """Wait for the daemon's pid file, and return its record."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        try:
            return Record.of(int(layout.pid_file.read_text()))
        except (OSError, ValueError):
            time.sleep(0.02)
    return None


def states(layout: HomeLayout) -> dict[str, ProgramState]:
    """Return the state of every program, by name; empty if the supervisor does not answer."""
    transport = SupervisorTransport(None, None, f"unix://{layout.socket}")
    try:
        with xmlrpc.client.ServerProxy("http://127.0.0.1", transport) as proxy:
            answer = proxy.supervisor.getAllProcessInfo()
    except (OSError, xmlrpc.client.Error):
        return {}
    assert isinstance(answer, list)
    return {
        info["name"]: ProgramState(info["statename"], info["start"], info["spawnerr"] or info["description"]) for info in answer
    }


def configuration(layout: HomeLayout, settings: Settings, programs: list[Program]) -> str:
    """Return the supervisor's configuration. It contains no settings or secrets: children inherit them in the environment."""
    sections = [
        "; Written by Manifold at each start; edits are lost.",
        "[supervisord]",
        f"logfile={_plain(layout.logs / 'supervisord.log')}",
        "logfile_maxbytes=10MB",
        "logfile_backups=2",
        f"pidfile={_plain(layout.pid_file)}",
        f"childlogdir={_plain(layout.logs)}",
        f"minfds={_open_files()}",
        *(["user=root"] if os.geteuid() == 0 else []),
        "[unix_http_server]",
        f"file={_plain(layout.socket)}",
        "chmod=0700",
        "[rpcinterface:supervisor]",
        "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
        "[supervisorctl]",
        f"serverurl=unix://{_plain(layout.socket)}",
    ]
    for group in dict.fromkeys(program.group for program in programs):
        members = ",".join(program.name for program in programs if program.group == group)
        # The supervisor stops groups in descending order of priority, the members of a group together.
        sections += [f"[group:{group}]", f"programs={members}", f"priority={10 if group == SERVERS else 20}"]
    for program in programs:
        sections += _program(layout, settings, program)
    return "\n".join(sections) + "\n"


def _program(layout: HomeLayout, settings: Settings, program: Program) -> list[str]:
    """The lines of a program's section in the supervisor's configuration."""
    launch = [
        sys.executable,
        "-m",
        "manifold.sandbox.platform.exec_with_record",
        str(layout.record(program.name)),
        *command(program, settings),
    ]
    return [
        f"[program:{program.name}]",
        f"command={_plain(shlex.join(launch))}",
        f"directory={_plain(layout.run)}",
        "autorestart=true",
        "startsecs=1",
        f"startretries={_NO_LIMIT}",
        f"stopwaitsecs={program.stop_s}",
        "stopasgroup=false",  # Airflow's main process ends its group; a scheduler signalled twice abandons its workers
        "killasgroup=true",
        *([f'environment={PREFIX}TLS_SERVICE="{identity_of(program)}"'] if settings.tls else []),
        "redirect_stderr=true",
        f"stdout_logfile={_plain(layout.logs / program.log_name)}",
        "stdout_logfile_maxbytes=10MB",
        "stdout_logfile_backups=3",
    ]


def _plain(text: object) -> str:
    """Return the value escaped for the configuration file.

    Raises:
        Permanent: it contains a comment sign or line break.
    """
    if any(sign in str(text) for sign in (" ;", " #", "\n")):
        raise Permanent(
            f"{text}: the supervisor's configuration cannot hold a path with ' ;', ' #' or a line break; choose another home"
        )
    return str(text).replace("%", "%%")


def _open_files() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _FILES_MAX)
