"""Only files named compat use private names of libraries; they say why."""

import ast
from collections.abc import Iterator, Set
from pathlib import Path

import pytest

from tests.support.servers import ROOT

OURS = ("manifold", "dispatcher", "pipelines", "expectations", "dags", "plugins")


PUBLIC_IN_SPITE_OF_THEIR_NAMES = {"_asdict", "_fields", "_make", "_replace", "_exit"}


def is_compat(path: Path) -> bool:
    """Whether a file may use private names: `compat.py`, `_compat.py`, `rest_compat.py`."""
    return path.stem.split("_")[-1] == "compat"


def private_imports(path: Path) -> Iterator[str]:
    """The private names of libraries that a file imports, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            if first not in (*OURS, "__future__") and any(part.startswith("_") for part in rest):
                yield name


def names_defined(path: Path) -> Iterator[str]:
    """The names of functions, classes, variables and attributes that a file defines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and getattr(node.value, "id", "") in ("self", "cls")
        ):
            yield node.attr


def private_attributes(path: Path, defined: Set[str]) -> Iterator[str]:
    """Expressions in a file with a private attribute whose name is not among these."""
    for node in ast.walk(ast.parse(path.read_text())):
        name = node.attr if isinstance(node, ast.Attribute) else ""
        if name.startswith("_") and not name.endswith("__") and name not in defined:
            yield ast.unparse(node)


def ours() -> Iterator[Path]:
    """Every Python file of the product."""
    for package in OURS:
        yield from sorted((ROOT / package).rglob("*.py"))


def test_private_attributes_of_libraries_are_in_compat_alone() -> None:
    defined = {name for file in ours() for name in names_defined(file)} | PUBLIC_IN_SPITE_OF_THEIR_NAMES
    found = {
        str(file.relative_to(ROOT)): names
        for file in ours()
        if not is_compat(file) and (names := list(private_attributes(file, defined)))
    }

    assert found == {}, "put it into the package's compat.py, with the reason and what ends it"


@pytest.mark.parametrize("package", OURS)
def test_private_names_of_libraries_are_in_compat_alone(package: str) -> None:
    found = {
        str(file.relative_to(ROOT)): names
        for file in sorted((ROOT / package).rglob("*.py"))
        if not is_compat(file) and (names := list(private_imports(file)))
    }

    assert found == {}, "put it into the package's compat.py, with the reason and what ends it"


def test_a_private_import_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(
        "from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files\nimport redis._parsers\nimport manifold._x\n"
    )

    assert list(private_imports(file)) == ["pyiceberg.io.pyarrow._dataframe_to_data_files", "redis._parsers"]


def test_a_private_attribute_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text("def work(table, row):\n    table._do_commit()\n    row._asdict()\n    row.__class__\n    row._ours\n")

    assert list(private_attributes(file, PUBLIC_IN_SPITE_OF_THEIR_NAMES | {"_ours"})) == ["table._do_commit"]


NOT_OVER_CONNECT = {"sparkContext", "rdd", "_jvm", "_jdf", "_jsc", "_sc", "_jsparkSession", "_ensure_initialized"}


def driver_only(path: Path) -> list[str]:
    """The attributes of Spark's driver that a file uses: a client of a Spark Connect server has none of them."""
    found = (node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute))
    return [name for name in found if name in NOT_OVER_CONNECT]


@pytest.mark.parametrize("package", ["expectations", "manifold", "pipelines"])
def test_jobs_use_only_what_spark_connect_has_too(package: str) -> None:
    files = [file for file in sorted((ROOT / package).rglob("*.py")) if file.stem != "compat"]
    found = {str(file.relative_to(ROOT)): names for file in files if (names := driver_only(file))}

    assert found == {}, "use the session and its configuration; see pipelines.spark.parallelism"


def test_an_attribute_of_the_driver_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text("parts = spark.sparkContext.defaultParallelism\nrows.rdd.map(str)\nrows.sparkSession\n")

    assert driver_only(file) == ["sparkContext", "rdd"]
