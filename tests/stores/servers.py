"""The servers of a deployed lake, fetched by `make stores`: an S3 gateway, a REST catalog, PostgreSQL."""

import atexit
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psycopg
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from manifold.contracts.storage import S3
from tests.stores.identities import Identity
from tests.support.servers import ROOT, Server, free_port, start, stopping, wait_until

TOOLS = ROOT / ".tools" / "stores"
VERSITYGW, REST_JARS, BOTO3 = TOOLS / "versitygw", TOOLS / "rest", TOOLS / "boto3"
ACCESS_KEY, SECRET_KEY, REGION, BUCKET = "manifold", "manifold-secret", "us-east-1", "lake"


REMEDY = "`make stores` fetches it, or says what it needs for that"


def require(*files: Path) -> None:
    """Skip the test unless all of `files` exist."""
    missing = [file.name for file in files if not file.exists()]
    if missing:
        pytest.skip(f"{', '.join(missing)} not here; {REMEDY}")


def postgresql_programs() -> Path | None:
    """The folder of PostgreSQL's programs; None if not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


@contextmanager
def object_storage(folder: Path) -> Iterator[S3]:
    """An S3 gateway over a folder with one bucket; it checks signatures."""
    require(VERSITYGW)
    port, buckets = free_port(), folder / "buckets"
    (buckets / BUCKET).mkdir(parents=True)
    command = [str(VERSITYGW), "--port", f"127.0.0.1:{port}", "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--region", REGION]
    with stopping(start([*command, "posix", str(buckets)], port=port, log=folder / "versitygw.log")):
        yield S3(f"http://127.0.0.1:{port}", REGION, ACCESS_KEY, SECRET_KEY)


@contextmanager
def rest_catalog(folder: Path, warehouse: str, s3: S3) -> Iterator[str]:
    """Iceberg's REST catalog over a SQLite file; yields its address.

    The server's main class listens on every address, so its servlet runs in a Jetty on loopback here.
    """
    require(REST_JARS)
    folder.mkdir(parents=True, exist_ok=True)
    jvm = _gateway().jvm
    backend = {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{folder}/rest.db",
        "jdbc.schema-version": "V1",
        "warehouse": warehouse,
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        **s3.for_iceberg(),
    }
    catalog = jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
        "backend", backend, jvm.org.apache.hadoop.conf.Configuration()
    )
    servlet = jvm.org.apache.iceberg.rest.RESTCatalogServlet(jvm.org.apache.iceberg.rest.RESTCatalogAdapter(catalog))
    context = jvm.org.eclipse.jetty.servlet.ServletContextHandler()
    context.addServlet(jvm.org.eclipse.jetty.servlet.ServletHolder(servlet), "/*")
    http = free_port()
    server = jvm.org.eclipse.jetty.server.Server(jvm.java.net.InetSocketAddress("127.0.0.1", http))
    server.setHandler(context)
    server.start()
    try:
        yield f"http://127.0.0.1:{http}"
    finally:
        server.stop()


@cache
def _gateway() -> JavaGateway:
    """The JVM of all REST catalogs of this process, each with a server of its own. It ends with this process."""
    port = launch_gateway(classpath=f"{REST_JARS}/*", die_on_exit=True, javaopts=["-Xmx512m"])
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    atexit.register(gateway.shutdown)
    return gateway


@contextmanager
def postgresql(folder: Path, identity: Identity | None = None) -> Iterator[str]:
    """A private PostgreSQL cluster; yields the SQLAlchemy URL of its database.

    With an `identity` it presents that certificate and requires TLS.
    """
    programs = postgresql_programs() or Path("PostgreSQL")
    require(programs)
    folder.mkdir(parents=True)
    user, data, port = unprivileged(folder), folder / "data", free_port()
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", "manifold", "-A", "trust", "--no-sync", "-E", "UTF8"],
        user=user,
        check=True,
        capture_output=True,
    )
    command = [str(programs / "postgres"), "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", str(folder), "-F"]
    if identity is not None:
        identity.write(data / "server.crt", data / "server.key")
        if user is not None:
            os.chown(data / "server.key", user, -1)
        (data / "pg_hba.conf").write_text("hostssl all all all trust\n")
        command += ["-c", "ssl=on"]
    if user is not None:
        command = ["setpriv", f"--reuid={user}", "--clear-groups", *command]
    server = start(command, port=port, log=folder / "postgresql.log")
    try:
        wait_until(lambda: _accepts(server), what="PostgreSQL to accept connections")
        yield f"postgresql+psycopg://manifold@127.0.0.1:{port}/postgres"
    finally:
        server.process.send_signal(signal.SIGINT)  # without waiting for clients
        server.stop()


def unprivileged(folder: Path) -> int | None:
    """A user to run PostgreSQL as, which refuses root; the folder is given to that user."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody").pw_uid
    os.chown(folder, nobody, -1)
    for parent in folder.parents:
        if parent.owner() == "root" and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)  # pytest's folders are closed to other users
    return nobody


def _accepts(server: Server) -> bool:
    try:
        psycopg.connect(host="127.0.0.1", port=server.port, user="manifold", dbname="postgres", connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
