"""`infra/image`: rules for its Dockerfile, and references to existing files. Nothing is built here."""

import importlib.util
import os
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipelines.spark import jars
from tests.support.servers import ROOT

HERE = ROOT / "infra" / "image"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
Instruction = tuple[str, str]


def instructions() -> Iterator[Instruction]:
    """Each instruction of the Dockerfile with its arguments, on one line."""
    text = re.sub(r"^\s*#.*\n", "", (HERE / "Dockerfile").read_text(), flags=re.MULTILINE)
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.strip():
            word, _, arguments = line.partition(" ")
            yield word, arguments.strip()


INSTRUCTIONS = list(instructions())
LAST_STAGE = INSTRUCTIONS[max(place for place, (word, _) in enumerate(INSTRUCTIONS) if word == "FROM") :]


def arguments_of(word: str, among: list[Instruction] = INSTRUCTIONS) -> list[str]:
    return [arguments for each, arguments in among if each == word]


def loaded(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file, loader=SourceFileLoader(file.stem, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_stage_uses_one_pinned_base() -> None:
    stages = {arguments.partition(" AS ")[2] for arguments in arguments_of("FROM")} - {""}
    assert {arguments.partition(" ")[0] for arguments in arguments_of("FROM")} <= stages | {"${BASE}"}
    (base,) = (argument.removeprefix("BASE=") for argument in arguments_of("ARG") if argument.startswith("BASE="))
    assert re.fullmatch(r"docker\.io/library/debian:bookworm-\d{8}-slim", base), "an exact version, never latest"
    assert not (stages - {re.search(r"--from=(\w+)", a)[1] for a in arguments_of("COPY") if "--from" in a} - {"base", "pip"})  # type: ignore[index]


@pytest.mark.parametrize("arguments", [a for a in arguments_of("RUN") if "apt-get" in a])
def test_packages_are_installed_without_recommends_and_leave_no_lists(arguments: str) -> None:
    assert "apt-get update" in arguments
    assert "--no-install-recommends" in arguments
    assert "rm -rf /var/lib/apt/lists/*" in arguments
    assert "upgrade" not in arguments


def test_the_process_is_not_root_and_receives_signals() -> None:
    assert arguments_of("USER", LAST_STAGE) == ["10001:10001"]
    after = LAST_STAGE[[word for word, _ in LAST_STAGE].index("USER") + 1 :]
    assert {word for word, _ in after} == {"HEALTHCHECK", "ENTRYPOINT", "CMD", "ARG", "LABEL"}, "nothing runs as root after it"
    for word in ("ENTRYPOINT", "CMD"):
        assert arguments_of(word)[-1].startswith("["), "a shell would not forward signals"
    assert '["healthy"]' in arguments_of("HEALTHCHECK")[-1]
    assert not arguments_of("ADD")
    assert not arguments_of("VOLUME"), "an anonymous volume hides that something is written"


def test_no_layer_can_keep_a_secret() -> None:
    said = " ".join(arguments_of("ARG") + arguments_of("ENV"))
    assert not re.search(r"(?i)password|secret|token|_key|credential", said)
    mounts = [mount for arguments in arguments_of("RUN") for mount in re.findall(r"--mount=(\S+)", arguments)]
    assert set(mounts) == {"type=secret,id=ca", "type=secret,id=pip"}, "build settings of this machine are optional"
    ignored = (HERE / "Dockerfile.dockerignore").read_text().splitlines()
    assert next(line for line in ignored if not line.startswith("#")) == "*", "the build context contains only listed files"


def test_no_file_names_a_mirror() -> None:
    hosts = {host for path in HERE.rglob("*") if path.is_file() for host in re.findall(r"https?://([\w.-]+)", path.read_text())}
    assert hosts <= {"127.0.0.1"}, "the container itself"


def test_only_project_files_are_copied() -> None:
    ignored = (HERE / "Dockerfile.dockerignore").read_text().splitlines()
    seen = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    rooms = set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert {path for path in seen if (ROOT / path).is_dir() and "/" not in path} == rooms | {"dags", "plugins"}
    assert all((ROOT / path).exists() for path in seen)
    copied = {part for a in arguments_of("COPY") if "--from" not in a for part in a.split()[:-1]} - {"."}
    assert copied <= seen


def test_layers_are_ordered_by_how_often_they_change() -> None:
    order = [re.search(r"--from=(\w+)", arguments)[1] for arguments in arguments_of("COPY", LAST_STAGE)]  # type: ignore[index]
    assert order == ["jre", "spark", "jars", "libraries", "source"]
    assert LAST_STAGE[-1][0] == "LABEL", "the commit must not invalidate a layer"


def test_jars_are_the_tested_ones() -> None:
    lines = [line.split() for line in (HERE / "jars.txt").read_text().splitlines()]
    listed = {path: digest for digest, path in lines}
    named = {path.rpartition("/")[2]: digest for path, digest in listed.items()}
    assert named == jars.SHA256
    for path in listed:
        group, artifact, version = path.rsplit("/", 3)[:3]
        assert f"{group.replace('/', '.')}:{artifact}:{version}" == jars.COORDINATES[path.rpartition("/")[2]]


def needed() -> set[str]:
    """The project's requirements by the metadata of installed packages, independent of the lock."""
    asked = [(Requirement(each), "") for each in PROJECT["project"]["dependencies"]]
    overridden = {Requirement(each).name for each in PROJECT["tool"]["uv"]["override-dependencies"]}
    seen: set[tuple[str, str]] = set()
    while asked:
        requirement, of_extra = asked.pop()
        name = canonicalize_name(requirement.name)
        if name in overridden or (requirement.marker is not None and not requirement.marker.evaluate({"extra": of_extra})):
            continue
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                asked += [(Requirement(each), extra) for each in distribution(name).requires or []]
            except PackageNotFoundError as exc:
                raise AssertionError(f"{name} is asked for and not installed") from exc
    return {name for name, _ in seen}


def test_the_runtime_lock_is_the_lock_without_development_packages(tmp_path: Path) -> None:
    script = HERE / "runtime_lock.py"
    subprocess.run(["python3", script, ROOT / "requirements.lock", tmp_path], check=True, timeout=60)
    reads = loaded(script)
    whole = reads.blocks((ROOT / "requirements.lock").read_text())
    kept = reads.blocks((tmp_path / "spark.lock").read_text()) | reads.blocks((tmp_path / "runtime.lock").read_text())
    assert all(whole[name] == block for name, block in kept.items()), "version and hashes must equal those of the lock"
    assert all("--hash=sha256:" in block for block in kept.values())
    assert needed() <= kept.keys()
    here = {name for name in kept if _fits(kept[name])}
    assert here - needed() == set(), "no development-only package"
    development = {canonicalize_name(Requirement(each).name) for each in PROJECT["dependency-groups"]["dev"]}
    assert not development & here


def _fits(block: str) -> bool:
    """Whether a package is for this platform."""
    marker = Requirement(block.partition(" \\\n")[0]).marker
    return marker is None or marker.evaluate()


@pytest.mark.parametrize(
    ("command", "page"),
    [
        ("/usr/bin/tini -- /opt/manifold/bin/start python -m manifold.recorder", "http://127.0.0.1:9101/healthz"),
        ("/usr/bin/tini -- /opt/manifold/bin/start python -m dispatcher --replica 2", "http://127.0.0.1:9112/healthz"),
        ("python -m manifold.api", "http://127.0.0.1:9104/livez"),
        ("/opt/venv/bin/python -m manifold.signals", "http://127.0.0.1:9105/healthz"),
        ("/opt/venv/bin/airflow scheduler", "http://127.0.0.1:8974/health"),
        ("airflow api-server", "http://127.0.0.1:8080/api/v2/version"),
        ("airflow dag-processor", None),
        ("python -m pipelines ingest", None),
        ("sh -c echo python -m recorders", None),
    ],
)
def test_a_health_check_knows_the_page_of_its_process(command: str, page: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MANIFOLD_")]:
        monkeypatch.delenv(name)
    assert _healthy()(command) == page


def test_a_health_check_uses_the_port_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANIFOLD_DISPATCHER_PORT", "9200")
    assert _healthy()("python -m dispatcher --replica 1") == "http://127.0.0.1:9201/healthz"


def _healthy() -> Callable[[str], str | None]:
    found: Callable[[str], str | None] = loaded(HERE / "bin" / "healthy").page_of
    return found
