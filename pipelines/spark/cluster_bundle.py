"""Writes the bundle for a cluster: code, a Python environment for the workers, jars, and Spark defaults that name these files.

The nodes of the cluster need Java, Spark and Python. Their Python must have the same version as here, and the same path on all
nodes. Manifold need not be installed on the nodes.
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

from manifold.contracts.catalog_properties import uses_sigv4
from manifold.contracts.errors import Permanent
from manifold.settings import Settings
from pipelines.spark.conf import jars_for, launch_conf

CODE, ENVIRONMENT, DEFAULTS = "manifold.zip", "environment.tar.gz", "spark-defaults.conf"
SUBPACKAGES = ("archive", "campaigns", "contracts", "lake", "messaging", "queues", "runtime", "settings")
PACKAGES = ("expectations", "pipelines", *(f"manifold.{name}" for name in SUBPACKAGES))
# Distributions that workers import; their dependencies are added. PySpark is part of Spark on each node.
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
EXCLUDED_FILES = re.compile(r"(^|/)(tests?|include|__pycache__)/|\.(pyi|pxd|pyx|a)$")  # files that no worker needs
GZIP_LEVEL = 1  # the fastest: nodes unpack the archive again and again


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
    """Write the bundle into `folder`, and replace the files of an earlier bundle.

    `python` is the path of the interpreter on the nodes; None: the path of this interpreter. `with_driver` adds the libraries
    that only drivers need, for drivers that run on the cluster (deploy mode `cluster`).

    Raises:
        Permanent: a jar or a library is missing on this machine.
    """
    jars = [settings.jars / name for name in jars_for(settings)]
    if missing := [jar.name for jar in jars if not jar.is_file()]:
        raise Permanent(f"{settings.jars} lacks {', '.join(missing)}; `{sys.executable} -m pipelines.spark.jars` fetches them")
    folder = folder.absolute()
    (folder / "jars").mkdir(parents=True, exist_ok=True)
    copied_jars = [Path(shutil.copy(jar, folder / "jars")) for jar in jars]
    code, environment, defaults = folder / CODE, folder / ENVIRONMENT, folder / DEFAULTS
    _write_code(code)
    distributions = _with_dependencies(libraries_for(settings, with_driver=with_driver))
    own_python = Path(sys.base_prefix, "bin", f"python{_python_version()}")
    _write_environment(environment, distributions, python or own_python)
    conf = cluster_conf(settings, folder, [str(jar) for jar in copied_jars], with_driver=with_driver)
    defaults.write_text("".join(f"{name} {value}\n" for name, value in sorted(conf.items())))
    size = sum(file.stat().st_size for file in (code, environment, *copied_jars))
    return Shipped(str(defaults), str(code), str(environment), tuple(map(str, copied_jars)), size)


def libraries_for(settings: Settings, *, with_driver: bool) -> tuple[str, ...]:
    """Names of the distributions in the bundle, without those that are only dependencies of others."""
    signing = FOR_SIGNATURES if uses_sigv4(settings.catalog_options) else ()
    return (*FOR_WORKERS, *(FOR_DRIVERS if with_driver else ()), *signing)


def cluster_conf(settings: Settings, folder: Path, jars: Sequence[str], *, with_driver: bool) -> dict[str, str]:
    """Spark's defaults for jobs on a cluster. They contain no secrets."""
    unpacked = ENVIRONMENT.removesuffix(".tar.gz")  # the folder into which each worker unpacks the environment
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
        return conf  # the other options are for a driver on this machine
    driver_options = ("spark.pyspark.driver.python", "spark.ui.enabled")
    conf |= {name: value for name, value in launch_conf(settings).items() if name in driver_options}
    conf["spark.driver.extraClassPath"] = ":".join(jars)  # Java finds a JDBC driver only on the class path
    return conf


def _write_code(target: Path) -> None:
    """Write the zip file of Manifold's own packages."""
    part = target.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifold/__init__.py", (files("manifold") / "__init__.py").read_bytes())
        for package in PACKAGES:
            for name, file in _files_below(files(package), package.replace(".", "/")):
                archive.writestr(name, file.read_bytes())
    part.replace(target)  # atomic, because a job that reads the file may be starting


def _files_below(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    """Yield each file below the folder, except compiled modules, with its path in the zip file, where the folder is `name`."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _files_below(entry, f"{name}/{entry.name}")
        elif entry.is_file():
            yield f"{name}/{entry.name}", entry


def _with_dependencies(names: Sequence[str]) -> list[Distribution]:
    """These distributions and all their dependencies, as installed on this machine, each once, sorted by name."""
    distributions: dict[str, Distribution] = {}
    seen_extras: dict[str, set[str]] = {}  # by name; a distribution may be required again, with other extras
    pending = [Requirement(name) for name in names]
    while pending:
        requirement = pending.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()  # the normalized name (PEP 503)
        known_extras = seen_extras.setdefault(name, set())
        new_extras = {"", *requirement.extras} - known_extras  # the empty one: what is required without extras
        if not new_extras:
            continue
        known_extras |= new_extras
        try:
            distributions[name] = distribution(name)
        except PackageNotFoundError as exc:
            remedy = f"pip install {name}" if name in FOR_SIGNATURES else "make setup"
            raise Permanent(f"{name} is not installed here, and workers need it: {remedy}") from exc
        dependencies = map(Requirement, distributions[name].requires or ())
        pending += [dependency for dependency in dependencies if _is_needed(dependency, new_extras)]
    return [distributions[name] for name in sorted(distributions)]


def _is_needed(dependency: Requirement, extras: Set[str]) -> bool:
    """Whether the dependency's marker holds here, for any of these extras."""
    if dependency.marker is None:
        return True
    return any(dependency.marker.evaluate({"extra": extra}) for extra in extras)


def _write_environment(target: Path, distributions: Sequence[Distribution], python: Path) -> None:
    """Write a virtual environment as a tar archive.

    It contains these distributions as installed on this machine; `bin/python` is a link to `python`, a path on the nodes.
    """
    part = target.with_suffix(".part")
    with tarfile.open(part, "w:gz", compresslevel=GZIP_LEVEL) as archive:
        config = f"home = {python.parent}\ninclude-system-site-packages = false\nversion = {sys.version.split()[0]}\n"
        _add_bytes(archive, tarfile.TarInfo("pyvenv.cfg"), config.encode())
        for name, target_path in (("python", str(python)), ("python3", "python")):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type = tarfile.SYMTYPE
            link.linkname = target_path
            archive.addfile(link)
        for installed in distributions:
            _add_distribution(archive, installed)
    part.replace(target)


def _add_distribution(archive: tarfile.TarFile, installed: Distribution) -> None:
    """Add the files of an installed distribution that workers need."""
    packages = f"lib/python{_python_version()}/site-packages"
    for file in installed.files or ():
        path = Path(str(file.locate()))
        is_in_packages = ".." not in file.parts  # others, such as commands, are outside of the folder of packages
        if is_in_packages and path.is_file() and not EXCLUDED_FILES.search(str(file)):
            archive.add(path, f"{packages}/{file}", recursive=False)
            _add_compiled(archive, path, f"{packages}/{file}")


def _add_compiled(archive: tarfile.TarFile, path: Path, name: str) -> None:
    """Add the compiled form of the module `path`, if there is one, so that workers need not compile the module.

    `name` is the module's own path in the archive.
    """
    if path.suffix == ".py":
        compiled = Path(cache_from_source(str(path)))
        if compiled.is_file():
            folder = name.rpartition("/")[0]
            archive.add(compiled, f"{folder}/__pycache__/{compiled.name}", recursive=False)


def _add_bytes(archive: tarfile.TarFile, info: tarfile.TarInfo, content: bytes) -> None:
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
