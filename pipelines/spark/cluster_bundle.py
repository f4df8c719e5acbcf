"""Writes the bundle for a cluster: code, a Python environment for the workers, jars, and Spark defaults that name them.

Nodes need Java, Spark, and the same version of Python at the same path; nothing of Manifold has to be installed there.
"""

import io
import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence, Set
from dataclasses import asdict, dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import cache_from_source
from pathlib import Path

from packaging.requirements import Requirement

from manifold.contracts.catalog_properties import signs
from manifold.contracts.errors import Permanent
from manifold.settings import Settings
from pipelines.spark.conf import jars_for, launch_conf

CODE, ENVIRONMENT, DEFAULTS = "manifold.zip", "environment.tar.gz", "spark-defaults.conf"
SUBPACKAGES = ("archive", "campaigns", "contracts", "lake", "messaging", "queues", "runtime", "settings")
PACKAGES = ("expectations", "pipelines", *(f"manifold.{room}" for room in SUBPACKAGES))
# Distributions that workers import, with their dependencies. PySpark comes with Spark on each node.
FOR_WORKERS = (
    *("cryptography", "hiredis", "httpx", "msgspec", "orjson", "pandas", "pyarrow", "pydantic-settings", "pyiceberg"),
    *("pyiceberg-core", "redis", "sqlalchemy", "structlog", "tenacity"),
)
FOR_DRIVERS = (
    "aiohttp",
    "great-expectations",
    "jinja2",
    "matplotlib",
    "mqtt5",
    "prometheus-client",
    "psutil",
    "psycopg",
    "psycopg-binary",
    "ruamel-yaml",
)
FOR_SIGNATURES = ("boto3",)  # not a dependency of Manifold
LEFT_OUT = re.compile(r"(^|/)(tests?|include|__pycache__)/|\.(pyi|pxd|pyx|a)$")
QUICK = 1  # gzip level: speed before size, as the archive is unpacked again and again


@dataclass(frozen=True, slots=True)
class Shipped:
    """Files that were written for a cluster."""

    defaults: str
    code: str
    environment: str
    jars: tuple[str, ...]
    bytes: int  # total size

    def to_json(self) -> dict[str, object]:
        """The JSON that `manifold ship --json` prints."""
        return asdict(self)


def ship(settings: Settings, folder: Path, *, python: Path | None = None, with_driver: bool = False) -> Shipped:
    """Write the bundle into `folder`, replacing the files of an earlier one.

    `python` is the nodes' interpreter, of the same version as this one; None: at the same path. `with_driver`: drivers run on
    the cluster, too (deploy mode `cluster`).

    Raises:
        Permanent: a jar or a library is missing here.
    """
    jars = [settings.jars / name for name in jars_for(settings)]
    if missing := [jar.name for jar in jars if not jar.is_file()]:
        raise Permanent(f"{settings.jars} lacks {', '.join(missing)}; `{sys.executable} -m pipelines.spark.jars` fetches them")
    folder = folder.absolute()
    (folder / "jars").mkdir(parents=True, exist_ok=True)
    here = [Path(shutil.copy(jar, folder / "jars")) for jar in jars]
    code, environment, defaults = folder / CODE, folder / ENVIRONMENT, folder / DEFAULTS
    _write_code(code)
    needed = _with_needs(libraries_for(settings, with_driver=with_driver))
    _write_environment(environment, needed, python or Path(sys.base_prefix, "bin", f"python{_version()}"))
    conf = cluster_conf(settings, folder, [str(jar) for jar in here], with_driver=with_driver)
    defaults.write_text("".join(f"{name} {value}\n" for name, value in sorted(conf.items())))
    size = sum(file.stat().st_size for file in (code, environment, *here))
    return Shipped(str(defaults), str(code), str(environment), tuple(map(str, here)), size)


def libraries_for(settings: Settings, *, with_driver: bool) -> tuple[str, ...]:
    """Distributions that nodes are given, without their dependencies."""
    signing = FOR_SIGNATURES if signs(settings.catalog_options) else ()
    return (*FOR_WORKERS, *(FOR_DRIVERS if with_driver else ()), *signing)


def cluster_conf(settings: Settings, folder: Path, jars: Sequence[str], *, with_driver: bool) -> dict[str, str]:
    """Spark's defaults for jobs on a cluster; contains no secret."""
    unpacked = Path(ENVIRONMENT.split(".")[0])
    conf = {
        "spark.driver.memory": settings.spark_driver_memory,
        "spark.submit.pyFiles": str(folder / CODE),
        "spark.archives": f"{folder / ENVIRONMENT}#{unpacked}",
        "spark.pyspark.python": f"./{unpacked}/bin/python",
        "spark.jars": ",".join(jars),
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
    }
    if with_driver:
        return conf
    kept = ("spark.pyspark.driver.python", "spark.ui.enabled")
    return conf | {name: value for name, value in launch_conf(settings).items() if name in kept} | _driver_class_path(jars)


def _driver_class_path(jars: Sequence[str]) -> dict[str, str]:
    """Put the jars on the driver's class path: Java finds a JDBC driver only there."""
    return {"spark.driver.extraClassPath": ":".join(jars)}


def _write_code(target: Path) -> None:
    part = target.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifold/__init__.py", (files("manifold") / "__init__.py").read_bytes())
        for package in PACKAGES:
            for name, file in _files_below(files(package), package.replace(".", "/")):
                archive.writestr(name, file.read_bytes())
    part.replace(target)  # atomically: a job may be starting


def _files_below(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _files_below(entry, f"{name}/{entry.name}")
        elif entry.is_file():
            yield f"{name}/{entry.name}", entry


def _with_needs(roots: Sequence[str]) -> list[Distribution]:
    """These distributions and all their dependencies, as installed here, once each."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement(name) for name in roots]
    while waiting:
        wanted = waiting.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError as exc:
            remedy = f"pip install {name}" if name in FOR_SIGNATURES else "make setup"
            raise Permanent(f"{name} is not installed here, and workers need it: {remedy}") from exc
        all_needs = map(Requirement, found[name].requires or ())
        waiting += [need for need in all_needs if _is_due(need, wanted.extras)]
    return [found[name] for name in sorted(found)]


def _is_due(need: Requirement, extras: Set[str]) -> bool:
    return need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras or {""})


def _write_environment(target: Path, needed: Sequence[Distribution], python: Path) -> None:
    """Write a virtual environment as an archive: `bin/python` links to the node's own, the libraries are those installed here."""
    part = target.with_suffix(".part")
    packages = f"lib/python{_version()}/site-packages"
    with tarfile.open(part, "w:gz", compresslevel=QUICK) as archive:
        text = f"home = {python.parent}\ninclude-system-site-packages = false\nversion = {sys.version.split()[0]}\n".encode()
        _add(archive, tarfile.TarInfo("pyvenv.cfg"), text)
        for name, leads_to in (("python", str(python)), ("python3", "python")):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, leads_to
            archive.addfile(link)
        for one in needed:
            for file in one.files or ():
                path = Path(str(file.locate()))
                if ".." not in file.parts and path.is_file() and not LEFT_OUT.search(str(file)):
                    archive.add(path, f"{packages}/{file}", recursive=False)
                    _add_compiled(archive, path, f"{packages}/{file}")
    part.replace(target)


def _add_compiled(archive: tarfile.TarFile, path: Path, name: str) -> None:
    """Add the compiled module, or every worker would compile it again."""
    if path.suffix == ".py":
        compiled = Path(cache_from_source(str(path)))
        if compiled.is_file():
            archive.add(compiled, f"{name.rpartition('/')[0]}/__pycache__/{compiled.name}", recursive=False)


def _add(archive: tarfile.TarFile, info: tarfile.TarInfo, content: bytes) -> None:
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def _version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
