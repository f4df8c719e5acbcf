"""Every command prints only its own output: no library noise on success or on user errors."""

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main

from manifold.console._app import make_app
from manifold.sandbox.platform import certificates
from manifold.sandbox.platform.airflow_users import create_missing
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings
from tests.conftest import FEW_ROWS, jvm_for_few_rows
from tests.pipelines.connect import connect_server
from tests.support.console import LIBRARIES, WITHIN_S, manifold, plain
from tests.support.platforms import platform_settings, variables
from tests.support.servers import ROOT, wait_until

# These run on one Spark Connect server. The others start a JVM of their own, whose output the same code redirects. Both have
# Spark's options for a few rows; the `ingest` and the demo have its defaults.
ON_A_SERVER = {"populate", "rebuild", "verify", "gc"}
DEMO_S = 1200  # for the demo, which starts Airflow and several of them
RUN = uuid.uuid4().hex[:8]
CAMPAIGN, PROPOSED = f"campaign-{RUN}", f"proposed-{RUN}"
VIN, GONE, REQUEST, CLIENT, DEVICE = f"VIN-{RUN}", f"GONE-{RUN}", f"task_{RUN}", f"client-{RUN}", f"device-{RUN}"
OURS = re.compile(  # a log line, a step of `up`, one of `demo`, an error
    r"timestamp='\S+' level='\w+' service='(console|stream)' event=|  \S+: |✓ .* \d:\d\d:\d\d$|error: |port \d+ is in use |$"
)
USAGE = re.compile(r"Usage: |Try |╭|│|╰|Aborted|$")  # how the command line rejects an option
NOISE = re.compile(
    r"Traceback|nanobind|Warning|WARN|NOTE: |log4j|py4j|site-packages|:: loading|\bivy\b|it/s\]|\d%\||Calculating Metrics",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Case:
    """One command: arguments that succeed, and an error whose message must contain field, value and remedy."""

    succeeds: str
    mistake: str
    names: tuple[str, ...]
    wrong: dict[str, str] | None = None  # settings of the error case, which runs in an empty home
    status: int = 0  # exit status on success


NO_NUMBER = {"MANIFOLD_NODE": "many"}
NO_JARS = {"MANIFOLD_JARS": "/no/such/folder"}
WRONG_NUMBER = ("MANIFOLD_NODE", "many", "valid integer")
NO_JAVA = {"JAVA_HOME": "/no/java"}  # spark-submit also prints that it is missing
WITHOUT_JAVA = ("/no/java", "set JAVA_HOME to Java 17")
WITHOUT_JARS = ("/no/such/folder lacks", "pipelines.spark.jars", "MANIFOLD_JARS")
NO_VIN = ("VIN 'A B'", "must be 1 to 64 printable ASCII")
NO_REQUEST = ("request_id 'a/b'", "must be 1 to 128 printable ASCII")
NO_DEVICE = ("device id 'A B'", "must be 1 to 100 of the characters A-Z")
NO_CAMPAIGN = ("campaign 'a b'", "must be 1 to 128 printable ASCII")
NO_PLAN = ("cannot read /no/file", "name a file that exists")
COUNT = ("--count", "greater than or equal to 1")
# In this order, because a lake is checked before it is changed, and an erasure drops the history that a rollback needs.
CASES = {
    "ingest": Case("--json", "--from 2026-01-02 --to 2026-01-01", ("--from and --to", "2026-01-02", "is not an interval")),
    "report": Case("--json", "--run-id nobody", ("there is no report", "run manifold ingest")),
    "lake check": Case("--json", "--days -1", ("--days", "greater than or equal to 0")),
    "quarantine ls": Case("--json", "--since yesterday", ("--since", "yesterday")),
    "quarantine show": Case("{refused} --json", "1", ("1",)),
    "quarantine replay": Case("{refused} --payload {tmp}/trigger --json", "1", ("1",)),
    "quarantine drop": Case("{refused} --json", "1", ("1",)),
    "compact": Case("--json", "", WRONG_NUMBER, NO_NUMBER),
    "lake rollback": Case("--run-id {run} --json", "--run-id nobody", ("nobody",)),
    "stream": Case("--until-idle --json", "", WITHOUT_JAVA, NO_JAVA),
    "populate": Case("--json", "", WITHOUT_JARS, NO_JARS),
    "rebuild": Case("--json", "--no-flush", WITHOUT_JAVA, NO_JAVA),
    "verify": Case("--json", "", WITHOUT_JAVA, NO_JAVA),
    "gc": Case("--json", "", WITHOUT_JAVA, NO_JAVA),
    "down": Case("", "", WRONG_NUMBER, NO_NUMBER),
    "status": Case("--json", "", WRONG_NUMBER, NO_NUMBER),
    "settings": Case("--json", "", WRONG_NUMBER, NO_NUMBER),
    "doctor": Case("--json", "", WRONG_NUMBER, NO_NUMBER),
    "ship": Case("{tmp}/ship --json", "{tmp}/a-file", ("{tmp}/a-file", "name a folder")),
    "airflow": Case("version", "version", ("has no Airflow yet", "run `manifold up` first")),
    "password": Case("viewer", "nobody", ("'nobody'", "ask for admin, operator, viewer")),
    "send": Case(f"{VIN} --data-id d-{RUN} --json", "V --data /no/file", ("/no/file", "name a file that exists")),
    "fleet": Case("--fresh --json", "", ("Redis is unavailable", "manifold status")),
    "watch": Case("--count 1 --json", "", ("Redis is unavailable", "manifold status")),
    "certificates issue": Case(f"{VIN} --json", "V --days 0", ("--days", "greater than or equal to 0.001")),
    "certificates revoke": Case(f"{GONE} --json", "nobody", ("nobody", "manifold certificates list")),
    "certificates list": Case("--json", "", WRONG_NUMBER, NO_NUMBER),
    "vin show": Case(f"{VIN} --json", "show*A B", NO_VIN),
    "vin pending": Case(f"{VIN} --json", "pending*A B", NO_VIN),
    "vin history": Case(f"{VIN} --json", "history*A B", NO_VIN),
    "batch show": Case(f"{REQUEST} --json", "a/b", NO_REQUEST),
    "batch cancel": Case(f"{REQUEST} --json", "a/b", NO_REQUEST),
    "data show": Case(f"data-{RUN} --json", "show*a b", ("data_id 'a b'", "must be 1 to 128 printable ASCII")),
    "campaign check": Case("{tmp}/plan --json", "/no/file", NO_PLAN),
    "campaign forecast": Case("{tmp}/plan --json", "/no/file", NO_PLAN),
    "campaign propose": Case("{tmp}/proposed --json", "/no/file", NO_PLAN),
    "campaign approve": Case(f"{PROPOSED} --json", "approve*a b", NO_CAMPAIGN),
    "campaign refuse": Case(f"{PROPOSED} --json", "refuse*a b", NO_CAMPAIGN),
    "campaign pause": Case(f"{CAMPAIGN} --json", "pause*a b", NO_CAMPAIGN),
    "campaign resume": Case(f"{CAMPAIGN} --json", "resume*a b", NO_CAMPAIGN),
    "campaign retry": Case(
        f"{CAMPAIGN} --ended failed --json", f"{CAMPAIGN} --ended lost", ("--ended 'lost'", "must be one of failed")
    ),
    "campaign amend": Case(f"{CAMPAIGN} {{tmp}}/plan --json", f"{CAMPAIGN} /no/file", NO_PLAN),
    "campaign pass": Case(
        f"{CAMPAIGN} --wave 0 --why because --yes --json", "pass*a b*--wave*0*--why*because*--yes", NO_CAMPAIGN
    ),
    "campaign cancel": Case(f"{CAMPAIGN} --yes --json", "cancel*a b*--yes", NO_CAMPAIGN),
    "campaign ls": Case("--json", "--state gone", ("--state 'gone'", "must be one of")),
    "campaign show": Case(f"{CAMPAIGN} --json", "show*a b", NO_CAMPAIGN),
    "campaign targets": Case(f"{CAMPAIGN} --json", "targets*a b", NO_CAMPAIGN),
    "campaign events": Case(f"{CAMPAIGN} --json", "events*a b", NO_CAMPAIGN),
    "campaign report": Case(f"{CAMPAIGN}", "report*a b", NO_CAMPAIGN),
    "campaign verify": Case(f"{CAMPAIGN} --json", "verify*a b", NO_CAMPAIGN),
    "ecq show": Case(f"{CLIENT} --json", "a+b", ("a+b",)),
    "ecq write": Case(
        f"{CLIENT} key --data {{tmp}}/payload --json", f"{CLIENT} key --data /no/file", ("/no/file", "name a file")
    ),
    "ecq rewind": Case(f"{CLIENT} --to earliest --json", f"{CLIENT} --to soon", ("--to", "soon", "earliest")),
    "ecq top": Case("--json", "--count 0", COUNT),
    "signals send": Case(f"{DEVICE} --data {{tmp}}/reading --json", f"{DEVICE} --data /no/file", ("/no/file", "name a file")),
    "signals show": Case(f"{DEVICE} --json", "show*A B", NO_DEVICE),
    "signals keys list": Case("--json", "", WRONG_NUMBER, NO_NUMBER),
    "signals keys rotate": Case("--json", "", WRONG_NUMBER, NO_NUMBER),
    "signals keys new": Case("", "--id a=b", ("--id", "write <id>:<base64 of 32 random bytes>")),
    "signals dlq ls": Case("--json", "--count 0", COUNT),
    "signals dlq show": Case("1", "0", ("place", "greater than or equal to 1")),
    "signals dlq replay": Case("--dry-run --json", "--count 0", COUNT),
    "queue top": Case("--json", "--count 0", COUNT),
    "queue peek": Case(f"{VIN} --json", "peek*A B", NO_VIN),
    "lake migrate": Case("--plan --json", "--plan", WRONG_NUMBER, NO_NUMBER),
    "lake restore": Case("--yes --json", "--yes", WITHOUT_JAVA, NO_JAVA),
    "vin erase": Case(f"{GONE} --why because --yes --json", "erase*A B*--why*because", NO_VIN),
    "signals erase": Case(f"{DEVICE} --why because --yes --json", "erase*A B*--why*because", NO_DEVICE),
}
BY_FIXTURES = {"up", "demo"}  # covered by the fixture and by a test of its own
# The fixture has seen what `ingest` prints. `lake restore` is a minute of the same ingest, and prints like `lake check`.
NOT_REPEATED = {"ingest", "lake restore"}


@dataclass(frozen=True)
class Sandbox:
    """A running platform with one message of each kind in the lake."""

    settings: Settings
    folder: Path
    run_id: str
    refused: str


def cold(*arguments: str, env: dict[str, str], within_s: int = WITHIN_S) -> subprocess.CompletedProcess[str]:
    """Run a command as users do, with a Python of its own."""
    command = [sys.executable, "-m", "manifold.console", *arguments]
    return subprocess.run(command, env=plain(env), capture_output=True, text=True, check=False, cwd=ROOT, timeout=within_s)


def words(command: str, arguments: str, **named: str) -> list[str]:
    """The command line; `*` separates arguments that contain spaces."""
    if "*" in arguments:
        return [*command.split()[:-1], *arguments.split("*")]
    return [*command.split(), *arguments.format(**named).split()]


def assert_ours_alone(done: subprocess.CompletedProcess[str], *, json_too: bool, refused: bool = False) -> None:
    said = f"{done.args} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    allowed = (OURS, USAGE) if refused else (OURS,)
    strange = [line for line in done.stderr.splitlines() if not any(kind.match(line) for kind in allowed)]
    assert strange == [], said
    if json_too:
        json.loads(done.stdout)  # the output is only the document
    else:
        assert [line for line in done.stdout.splitlines() if NOISE.search(line)] == [], said


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A running platform with a batch, data, a refused trigger, a compacted message and a signal, all ingested."""
    folder = tmp_path_factory.mktemp("noise")
    settings = platform_settings(folder / "home", with_signals=True, segment_max_seconds=2)
    env = environment(settings)
    create_missing(settings)
    certificates.create_missing(settings)
    (settings.home / "airflow").mkdir()
    (settings.home / "airflow" / "airflow.db").touch()  # `manifold airflow` checks for it; `version` does not open it
    (folder / "payload").write_text(RUN)
    (folder / "a-file").write_text("")
    (folder / "reading").write_text("{}")
    waves = [{"name": "first", "vins": [VIN]}, {"name": "rest", "size": "rest"}]
    plan = {"data_id": f"data-{RUN}", "targets": {"vins": [VIN, GONE]}, "waves": waves, "ends": "2099-01-01T00:00:00Z"}
    (folder / "plan").write_text(json.dumps(plan | {"campaign": CAMPAIGN}))
    (folder / "proposed").write_text(json.dumps(plan | {"campaign": PROPOSED, "starts": "2098-01-01T00:00:00Z"}))
    (folder / "bad").write_text('{"ids": ["A B"], "request_id": "r", "data_id": "d"}')
    (folder / "trigger").write_text(json.dumps({"ids": [VIN], "request_id": f"again_{RUN}", "data_id": "d"}))
    up = cold("up", env=env)
    try:
        assert up.returncode == 0, up.stderr
        assert_ours_alone(up, json_too=False)
        batch = ("--data", str(folder / "payload"), "--data-id", f"data-{RUN}", "--request-id", REQUEST)
        assert manifold("send", VIN, GONE, *batch, env=env).returncode == 0
        assert manifold("send", "--trigger", str(folder / "bad"), env=env).returncode == 1
        for line in (("propose", str(folder / "plan")), ("approve", CAMPAIGN)):
            ordered = manifold("campaign", *line, env=env)
            assert ordered.returncode == 0, ordered.stderr
        shown = ("campaign", "show", CAMPAIGN, "--json")
        wait_until(lambda: json.loads(manifold(*shown, env=env).stdout)["state"] == "running", what="the campaign to run")
        assert manifold("certificates", "issue", GONE, env=env).returncode == 0
        forged = env | {"MANIFOLD_SIGNALS_HMAC_SECRET": uuid.uuid4().hex}
        assert manifold("signals", "send", DEVICE, "--data", str(folder / "reading"), env=forged).returncode == 0
        letters = ("signals", "dlq", "ls", "--json")
        wait_until(lambda: json.loads(manifold(*letters, env=env).stdout)["dead_letters"], what="a dead letter")
        ingested = cold("ingest", "--json", env=env)
        assert ingested.returncode == 0, ingested.stderr
        assert_ours_alone(ingested, json_too=True)
        (refused,) = json.loads(manifold("quarantine", "ls", "--stream", "trigger", "--json", env=env).stdout)
        yield Sandbox(settings, folder, json.loads(ingested.stdout)["run_id"], str(refused["seq"]))
    finally:
        down = manifold("down", env=env)
    assert_ours_alone(down, json_too=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server."""
    with connect_server(tmp_path_factory.mktemp("connect"), FEW_ROWS) as server:
        yield server.address


def test_every_command_has_a_case() -> None:
    def paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
        inner = getattr(command, "commands", {})
        for name, each in inner.items():
            yield from paths(each, (*path, name))
        if not inner:
            yield " ".join(path)

    assert {*paths(typer.main.get_command(make_app()))} == {*CASES, *BY_FIXTURES}


@pytest.mark.slow
@pytest.mark.timeout(DEMO_S + 100)
def test_the_demo_prints_its_steps_and_results(tmp_path: Path) -> None:
    """Before the tests of `sandbox`, whose services would run beside it."""
    env = environment(platform_settings(tmp_path / "home", with_airflow=True, with_signals=True))
    done = cold("demo", env=env, within_s=DEMO_S)

    assert done.returncode == 0, done.stdout + done.stderr
    assert_ours_alone(done, json_too=False)
    assert "✓ starting the platform: " in done.stderr
    assert "all of it held" in done.stdout
    assert "from trigger to vehicle, all 150 of the batch" in done.stdout
    assert re.search(r"from a trigger for one vehicle to it +\d+ ms", done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S + 100)
@pytest.mark.parametrize("command", [command for command in CASES if command not in NOT_REPEATED])
def test_a_successful_command_prints_only_its_result(sandbox: Sandbox, command: str, request: pytest.FixtureRequest) -> None:
    case = CASES[command]
    named = {"tmp": str(sandbox.folder), "run": sandbox.run_id, "refused": sandbox.refused}
    env = environment(sandbox.settings) if command != "down" else {"MANIFOLD_HOME": str(sandbox.folder / "empty")}
    env |= variables(spark_master=request.getfixturevalue("server")) if command in ON_A_SERVER else jvm_for_few_rows()
    done = manifold(*words(command, case.succeeds, **named), env=env)

    assert done.returncode == case.status, done.stderr + done.stdout
    assert_ours_alone(done, json_too="--json" in case.succeeds and command != "watch")


def test_imports_of_commands_print_nothing() -> None:
    """Other tests fork commands from a process that has these imports."""
    modules = [*LIBRARIES, *(f"manifold.console.{path.stem}" for path in (ROOT / "manifold" / "console").glob("_[a-z]*.py"))]
    program = f"import importlib; [importlib.import_module(name) for name in {modules}]"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("command", CASES)
def test_a_user_error_names_field_value_and_remedy(command: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("")
    case, nowhere = (
        CASES[command],
        {f"MANIFOLD_{name}_PORT": "2" for name in ("REDIS", "RECORDER", "API", "AMQP", "MQTT", "MQTT_SERVICES")},
    )
    env = {"MANIFOLD_HOME": str(tmp_path / "home")} | nowhere | (case.wrong or {})
    done = manifold(*words(command, case.mistake, tmp=str(tmp_path)), env=env)

    assert done.returncode > 0, done.stderr
    assert_ours_alone(done, json_too=False, refused=True)
    assert done.stdout == ""
    said = " ".join(re.sub("[│╭╰╮╯─]", " ", done.stderr).split())
    assert [part for part in case.names if part.format(tmp=tmp_path) not in said] == [], done.stderr


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S)
def test_a_demo_next_to_a_running_platform_fails_with_a_remedy(sandbox: Sandbox) -> None:
    done = manifold("demo", env=environment(sandbox.settings))

    assert done.returncode == 1
    assert_ours_alone(done, json_too=False)
    assert "run make down first" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S)
def test_a_start_on_ports_in_use_fails_with_a_remedy(sandbox: Sandbox, tmp_path: Path) -> None:
    done = manifold("up", env=environment(sandbox.settings) | {"MANIFOLD_HOME": str(tmp_path)})

    assert done.returncode == 1
    assert_ours_alone(done, json_too=False)
    assert re.search(r"port \d+", done.stderr), done.stderr
