"""The stages of the command line: each is found, documents itself and its arguments, and loads nothing before it runs."""

import subprocess
import sys

import pytest

from manifold.contracts.envelope import Stream
from manifold.contracts.tables import IDS
from manifold.lake.catalog import open_catalog
from pipelines import cli
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import at, trigger
from tests.pipelines.plain import ingest_and_audit, read, without_spark
from tests.support.servers import ROOT, free_port

PER_STAGE = {
    "discover": "--dry-run --from --no-flush --recent --run-id --to",
    "ingest": "--from --no-flush --recent --run-id --to",
    "audit": "--run-id",
    "publish": "--run-id",
    "populate": "--run-id",
    "rebuild": "--no-flush --run-id",
    "run_all": "--from --no-flush --recent --run-id --to",
    "stream": "--for-seconds --run-id --until-idle",
    "compact": "--run-id",
    "garbage": "--dry-run --run-id",
    "check": "--days --repair --run-id",
    "migrate": "--plan --run-id",
    "verify": "--repair --run-id",
    "process_signals": "--again --from --run-id --to",
    "rotate_keys": "--run-id",
    "campaign_asks": "--campaign --run-id --wave",
    "campaign_order": "--accept --by --campaign --do --ended --plan-sha256 --run-id --wave --why",
    "campaign_reports": "--campaign --days --run-id",
    "campaign_targets": "--by --campaign --run-id",
}
HEAVY = ("pyspark", "great_expectations", "pandas", "pyiceberg.io.pyarrow")


def loaded_by(code: str) -> set[str]:
    """The modules loaded by a new interpreter after this code."""
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_every_stage_is_known_by_its_name() -> None:
    assert {name: stage.run.__name__ for name, stage in cli.STAGES.items()} == {name: name for name in PER_STAGE}


@pytest.mark.parametrize("name", cli.STAGES)
def test_a_stage_documents_itself_and_its_arguments_are_stable(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.make_parser().parse_args([name, "--help"])

    usage = capsys.readouterr().out
    assert (cli.STAGES[name].run.__doc__ or "").split()[0] in usage
    assert {word.strip("[],") for word in usage.split() if word.strip("[],").startswith("--")} == {
        "--help",
        "--lineage-parent",
        "--result",
        *PER_STAGE[name].split(),
    }


@pytest.mark.parametrize("name", ["audit", "publish"])
def test_stages_that_work_on_a_run_require_its_id(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.make_parser().parse_args([name])

    assert (ended.value.code, "--run-id" in capsys.readouterr().err) == (cli.PERMANENT, True)


def test_the_command_line_imports_only_what_the_stage_needs() -> None:
    assert not loaded_by("from pipelines.cli import make_parser; make_parser()") & set(HEAVY)


def test_stages_alone_import_neither_lake_nor_spark() -> None:
    loaded = loaded_by("from pipelines.stages import campaigns, ingest, maintenance")

    assert not loaded & {*HEAVY, "pyiceberg", "redis", "sqlalchemy"}


AUDIT_AND_PUBLISH = """
from pipelines import cli
from pipelines.ingest import trends

trends.draw_trends = lambda *_, **__: None  # it draws, and so loads all, after the run is published
for stage in ("audit", "publish"):
    assert cli.main([stage, "--run-id", "run"]) == cli.DONE
"""


def test_a_run_that_passed_its_audit_is_published_without_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.renew()
    catalog = open_catalog(lake.settings)
    lake.archive(Stream.TRIGGER, [trigger(1, ["V1"])])
    ingest_and_audit(without_spark(catalog, lake.settings, "run", at(0)))
    monkeypatch.setenv("MANIFOLD_HOME", str(lake.settings.home))
    monkeypatch.setenv("MANIFOLD_REDIS_PORT", str(free_port()))  # no Redis: populate must follow

    loaded = loaded_by(AUDIT_AND_PUBLISH)

    assert not loaded & {"pyspark", "great_expectations"}
    assert [row["vin"] for row in read(catalog, IDS)] == ["V1"]
