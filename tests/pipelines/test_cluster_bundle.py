"""The bundle for a cluster has everything that its code imports, and workers are not asked for more than they have."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from importlib.resources import files
from pathlib import Path

import pytest

from manifold.settings import Settings
from pipelines.spark.cluster_bundle import PACKAGES, _with_dependencies, libraries_for

OF_SPARK = {"pyspark", "py4j"}  # on every node
OF_SERVICES = {"uvloop"}  # no job imports the module that needs it


def imported() -> Iterator[str]:
    """The modules that the shipped code imports, wherever in a file it does."""
    for package in PACKAGES:
        for file in Path(str(files(package))).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    yield from (name.name for name in node.names)
                elif isinstance(node, ast.ImportFrom):
                    yield node.module or ""


def plain(name: str) -> str:
    """The name of a distribution as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_a_bundle_with_a_driver_contains_all_that_its_code_imports() -> None:
    names = set(imported())
    assert {name for name in names if name.startswith("manifold.") and not name.startswith(PACKAGES)} == set()

    shipped = {plain(found.metadata["Name"]) for found in _with_dependencies(libraries_for(Settings(), with_driver=True))}
    providers = packages_distributions()
    known = sys.stdlib_module_names | OF_SPARK | OF_SERVICES | {package.partition(".")[0] for package in PACKAGES}
    tops = {name.partition(".")[0] for name in names}
    assert {top for top in tops - known if not shipped & set(map(plain, providers[top]))} == set()


@pytest.mark.parametrize("names", [("base", "base[More]"), ("base[More]", "base"), ("user", "base"), ("base", "user")], ids=str)
def test_a_library_required_with_and_without_extras_brings_their_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    requires = {
        "base": [
            "always",
            "more-1; extra == 'more'",
            "base[most]; extra == 'more'",
            "most-1; extra == 'most'",
            "no; extra == 'x'",
        ],
        "user": ["base[more]"],
    }
    for name in ("base", "user", "always", "more-1", "most-1"):
        metadata = [f"Name: {name}", "Version: 1", *(f"Requires-Dist: {dependency}" for dependency in requires.get(name, ()))]
        folder = tmp_path / f"{name.replace('-', '_')}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("\n".join(metadata))
    monkeypatch.syspath_prepend(tmp_path)

    shipped = {found.metadata["Name"] for found in _with_dependencies(names)}

    assert shipped == {"base", "always", "more-1", "most-1"} | {"user"} & set(names)


def test_collection_needs_no_client_of_the_broker() -> None:
    code = "import sys, pipelines.maintenance.garbage; print({'mqtt5', 'manifold.messaging'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
