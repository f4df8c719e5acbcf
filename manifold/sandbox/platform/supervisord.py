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
_SOCKET_PATH_MAX = 90  # bytes; the OS limit is 103 to 107, but supervisord binds a temporary name first, which is longer
_MAX_START_RETRIES = 1_000_000  # in effect unlimited, because the cause may go away; each pause is a second longer than the last
_START_S = 20.0
_MAX_OPEN_FILES = 65536  # of a program: tap and broker have sockets for each vehicle


class HomeLayout:
    """The folders of one platform, and the supervisor's files."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.run = home / "run"  # records of running processes, and the supervisor's files
        self.logs = home / "logs"
        self.config = self.run / "supervisord.conf"
        self.pid_file = self.run / "supervisord.pid"
        self.socket = _control_socket(self.run)
        self.settings_file = self.run / "settings.json"  # settings of the running platform, without secrets

    def save_settings(self, settings: Settings) -> None:
        """Save the settings of the started platform."""
        self.settings_file.write_text(json.dumps(settings.model_dump(mode="json"), indent=1))

    def started_with(self) -> dict[str, Any]:
        """Return the saved settings; empty if there are none."""
        try:
            saved: dict[str, Any] = json.loads(self.settings_file.read_text())
        except (OSError, ValueError):
            return {}
        return saved

    def record_file(self, name: str) -> Path:
        """Return the path of the process record of a program or the supervisor."""
        return self.run / f"{name}.process"

    def recorded(self) -> dict[str, Record]:
        """Return the records of all processes by program name, whether the processes run or not."""
        records = {file.stem: Record.read(file) for file in sorted(self.run.glob("*.process"))}
        return {name: record for name, record in records.items() if record is not None}

    def supervisor(self) -> Record | None:
        """Return the supervisor's record; None if the supervisor is not running."""
        record = Record.read(self.record_file(SUPERVISORD))
        return record if record and record.process() else None


def _control_socket(run: Path) -> Path:
    """Return the path of the supervisor's socket. It is in the temporary folder if a path under the home would be too long."""
    path = run / "supervisord.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH_MAX:
        return path
    return Path(tempfile.gettempdir()) / f"manifold-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.ctl"


@dataclass(frozen=True, slots=True)
class ProgramState:
    """A program's state, as reported by the supervisor."""

    state: str  # STARTING, RUNNING, BACKOFF, STOPPING, STOPPED, EXITED, FATAL
    started: int  # Unix seconds of the last start; 0: never
    reason: str  # why it is not running, if known; if it is running, its pid and uptime


def start(layout: HomeLayout, settings: Settings, programs: Iterable[Program]) -> None:
    """Write the configuration and start the supervisor, which starts all programs at once.

    Raises:
        Permanent: the supervisor does not start; the error has its message.
    """
    layout.config.write_text(configuration(layout, settings, list(programs)))
    layout.pid_file.unlink(missing_ok=True)
    # The command ends when it has read the configuration; the supervisor then runs in the background.
    completed = subprocess.run(
        [sys.executable, "-m", "supervisor.supervisord", "-c", str(layout.config)],
        env=environment(settings),
        cwd=layout.run,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    record = _wait_for_supervisor(layout) if completed.returncode == 0 else None
    if record is None:
        reason = completed.stderr.strip() or completed.stdout.strip()
        raise Permanent(f"the supervisor does not start: {reason} (see {layout.logs}/supervisord.log)")
    record.write(layout.record_file(SUPERVISORD))


def _wait_for_supervisor(layout: HomeLayout) -> Record | None:
    """Wait for the supervisor's pid file, and return its record; None if there is no file in time, or the process has ended."""
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
    program_states = {}
    for info in answer:
        reason = info["spawnerr"] or info["description"]
        program_states[info["name"]] = ProgramState(info["statename"], info["start"], reason)
    return program_states


def configuration(layout: HomeLayout, settings: Settings, programs: list[Program]) -> str:
    """Return the supervisor's configuration. It contains no settings or secrets, which children inherit in the environment."""
    run_as_root = ["user=root"] if os.geteuid() == 0 else []  # otherwise supervisord warns root that it runs as root
    sections = [
        "; Written by Manifold at each start; edits are lost.",
        "[supervisord]",
        f"logfile={_escaped(layout.logs / 'supervisord.log')}",
        "logfile_maxbytes=10MB",
        "logfile_backups=2",
        f"pidfile={_escaped(layout.pid_file)}",
        f"childlogdir={_escaped(layout.logs)}",
        f"minfds={_max_open_files()}",
        *run_as_root,
        "[unix_http_server]",
        f"file={_escaped(layout.socket)}",
        "chmod=0700",
        "[rpcinterface:supervisor]",
        "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
        "[supervisorctl]",
        f"serverurl=unix://{_escaped(layout.socket)}",
    ]
    for group in dict.fromkeys(program.group for program in programs):
        members = ",".join(program.name for program in programs if program.group == group)
        # The supervisor stops the group with the highest number first, and all members of a group together.
        priority = 10 if group == SERVERS else 20
        sections += [f"[group:{group}]", f"programs={members}", f"priority={priority}"]
    for program in programs:
        sections += _program_section(layout, settings, program)
    return "\n".join(sections) + "\n"


def _program_section(layout: HomeLayout, settings: Settings, program: Program) -> list[str]:
    """Return the lines of a program's section in the supervisor's configuration."""
    launch = [
        sys.executable,
        "-m",
        "manifold.sandbox.platform.exec_with_record",
        str(layout.record_file(program.name)),
        *command(program, settings),
    ]
    tls_environment = [f'environment={PREFIX}TLS_SERVICE="{identity_of(program)}"'] if settings.tls else []
    return [
        f"[program:{program.name}]",
        f"command={_escaped(shlex.join(launch))}",
        f"directory={_escaped(layout.run)}",
        "autorestart=true",
        "startsecs=1",
        f"startretries={_MAX_START_RETRIES}",
        f"stopwaitsecs={program.stop_s}",
        "stopasgroup=false",  # Airflow's main process signals its group; a scheduler that gets two signals abandons its workers
        "killasgroup=true",
        *tls_environment,
        "redirect_stderr=true",
        f"stdout_logfile={_escaped(layout.logs / program.log_name)}",
        "stdout_logfile_maxbytes=10MB",
        "stdout_logfile_backups=3",
    ]


def _escaped(text: object) -> str:
    """Return the value escaped for the configuration file.

    Raises:
        Permanent: it contains the beginning of a comment, or a line break, which cannot be escaped.
    """
    if any(unescapable in str(text) for unescapable in (" ;", " #", "\n")):
        raise Permanent(
            f"{text}: the supervisor's configuration cannot hold a path with ' ;', ' #' or a line break; choose another home"
        )
    return str(text).replace("%", "%%")


def _max_open_files() -> int:
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_OPEN_FILES if hard_limit == resource.RLIM_INFINITY else min(hard_limit, _MAX_OPEN_FILES)
