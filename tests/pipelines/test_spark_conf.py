"""Spark's configuration, and what Spark reveals of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession

from manifold.contracts.errors import Permanent
from manifold.contracts.tables import IDS
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.settings import Settings
from pipelines.spark.cluster_bundle import libraries_for
from pipelines.spark.conf import (
    ICEBERG_EXTENSIONS,
    REDACTED,
    S3_JAR,
    jars_for,
    session_conf,
    with_iceberg_extensions,
    write_defaults,
)
from pipelines.spark.parallelism import measured_parallelism, parallelism
from pipelines.spark.session import configure
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import at
from tests.support.servers import ROOT

AWAY = SecretStr("http://127.0.0.1:1")
SIGNED = SecretStr('{"rest.sigv4-enabled": true}')
GUARDED = Settings(
    catalog_type="rest",
    catalog_uri=AWAY,
    warehouse="fleet",
    catalog_properties=SecretStr('{"credential": "me:hunter2", "header.X-Site": "hunter2", "scope": "lake"}'),
    s3_access_key=SecretStr("hunter2"),
    s3_secret_key=SecretStr("hunter2"),
)
SITES = "com.example.Audit"  # a missing class: Spark reports each such extension and continues
WHICH = """
import json, sys
from manifold.settings import load_settings
from pipelines.spark.session import session
with session(load_settings(), "which") as spark:
    parser = spark._jsparkSession.sessionState().sqlParser().getClass().getName()
    print(json.dumps([spark.conf.get("spark.sql.extensions"), parser, spark.conf.get("spark.of-the-site")]))
"""


def test_catalog_properties_reach_spark_under_the_catalog_name() -> None:
    conf = session_conf(GUARDED)

    assert conf["spark.sql.catalog.manifold.credential"] == "me:hunter2"
    assert conf["spark.sql.catalog.manifold.scope"] == "lake"
    assert conf["spark.sql.catalog.manifold.warehouse"] == "fleet"
    assert "spark.sql.catalog.manifold.io-impl" not in conf  # Iceberg chooses by the address of each file
    assert S3_JAR in jars_for(GUARDED)


def conf_of(address: str) -> dict[str, str]:
    """Spark's catalog configuration for this address."""
    before = "spark.sql.catalog.manifold."
    conf = session_conf(Settings(catalog_uri=SecretStr(address)))
    return {name.removeprefix(before): value for name, value in conf.items() if name.startswith(before)}


def test_options_of_a_postgresql_catalog_address_reach_spark() -> None:
    said = "sslmode=verify-full&sslrootcert=/etc/ca.pem&options=-csearch_path%3Dlake&application_name=manifold&keepalives=1"
    conf = conf_of(f"postgresql+psycopg://me:h%2F2@db.example:5433/lake?{said}")

    assert conf["uri"] == "jdbc:postgresql://db.example:5433/lake"
    assert (conf["jdbc.user"], conf["jdbc.password"]) == ("me", "h/2")
    assert (conf["jdbc.sslmode"], conf["jdbc.sslrootcert"]) == ("verify-full", "/etc/ca.pem")
    assert (conf["jdbc.options"], conf["jdbc.ApplicationName"]) == ("-csearch_path=lake", "manifold")
    assert conf_of("postgresql+psycopg://me@[::1]/lake")["uri"] == "jdbc:postgresql://[::1]/lake"


@pytest.mark.parametrize(
    ("address", "says"),
    [
        pytest.param("postgresql+psycopg://me@db/lake?sslcrl=/etc/crl.pem", "sets sslcrl, which", id="no counterpart"),
        pytest.param("postgresql+psycopg://me@db/lake?sslmode=require&sslmode=disable", "sets sslmode", id="repeated"),
        pytest.param("postgresql+psycopg://me@/lake?host=/run/postgresql", "names no host", id="a socket file"),
    ],
)
def test_an_address_that_spark_would_interpret_differently_is_refused(address: str, says: str) -> None:
    with pytest.raises(Permanent, match=says):
        conf_of(address)


@pytest.mark.slow
def test_spark_redacts_the_properties_and_keeps_the_redaction_of_a_site(one_spark: SparkSession) -> None:
    session = one_spark.newSession()
    session.conf.set(REDACTED, "(?i)url|of-the-site")
    session.conf.set("spark.of-the-site", "hunter2")

    configure(session, GUARDED)

    shown = {row["key"]: row["value"] for row in session.sql("SET").collect()}
    assert shown["spark.sql.catalog.manifold.credential"] == "*********(redacted)"
    assert "hunter2" not in str(shown)
    assert "hunter2" not in str(session.sparkContext.getConf().getAll())  # shown on a page and in the event log
    assert session.conf.get("spark.sql.catalog.manifold.credential") == "me:hunter2"


def test_signing_names_the_library_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)  # it may be installed here
    signing = Settings(catalog_type="rest", catalog_uri=AWAY, warehouse="file:///lake", catalog_properties=SIGNED)

    assert S3_JAR in jars_for(signing)
    with pytest.raises(Permanent, match="MANIFOLD_CATALOG_PROPERTIES asks for needs boto3"):
        open_catalog(signing)
    assert "boto3" in libraries_for(signing, with_driver=False)
    assert "boto3" not in libraries_for(GUARDED, with_driver=True)


@pytest.mark.parametrize(
    ("sites", "all_of_them"),
    [
        ("", ICEBERG_EXTENSIONS),
        (SITES, f"{SITES},{ICEBERG_EXTENSIONS}"),
        (f" {SITES}, com.example.Other,", f"{SITES},com.example.Other,{ICEBERG_EXTENSIONS}"),
        (f"{ICEBERG_EXTENSIONS},{SITES}", f"{ICEBERG_EXTENSIONS},{SITES}"),
    ],
)
def test_iceberg_extensions_come_after_those_of_the_site(sites: str, all_of_them: str) -> None:
    assert with_iceberg_extensions(sites) == all_of_them


@pytest.mark.slow
@pytest.mark.parametrize("submitted", [True, False], ids=["spark-submit", "a session that is started here"])
def test_the_extensions_of_a_site_are_loaded_next_to_icebergs(tmp_path: Path, submitted: bool) -> None:
    """From the file named by the connection, or from that of the Spark installation (its configuration folder)."""
    defaults = write_defaults(Settings(spark_driver_memory="1g"), tmp_path) / "spark-defaults.conf"
    with defaults.open("a") as file:
        file.write(f"spark.sql.extensions {SITES}\nspark.of-the-site kept\n")
    program = tmp_path / "which.py"
    program.write_text(WHICH)
    env = os.environ | {"MANIFOLD_HOME": str(tmp_path / "home"), "MANIFOLD_SPARK_DRIVER_MEMORY": "1g", "PYTHONPATH": str(ROOT)}
    env["MANIFOLD_JARS"] = str(Settings().jars.absolute())
    command = [sys.executable]
    if submitted:
        command = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[1]", "--properties-file", str(defaults)]
    else:
        env["SPARK_CONF_DIR"] = str(tmp_path)
        env["JDK_JAVA_OPTIONS"] = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} -Xlog:gc".strip()  # written to stdout by a JVM

    done = subprocess.run(
        [*command, str(program)], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert submitted or len(done.stdout.splitlines()) == 1, "standard output contains only results"
    named, parser, kept = json.loads(done.stdout.splitlines()[-1])
    assert named == f"{SITES},{ICEBERG_EXTENSIONS}"
    assert kept == "kept"
    assert parser.endswith(".IcebergSparkSqlExtensionsParser")
    assert f"Cannot use {SITES}" in done.stderr  # it was loaded


def test_a_large_day_is_read_by_several_tasks(spark_lake: SparkLake) -> None:
    ensure_tables(spark_lake.catalog)
    for ms in range(2):
        entry = {"vin": "V1", "ts": at(ms), "request_id": "task_a_1", "seq": ms, "data_id": "d1", "applied": False}
        spark_lake.append(IDS, [entry])
    name = f"{spark_lake.settings.catalog_name}.{IDS.identifier}"
    rows = spark_lake.spark.read.option("file-open-cost", str(128 << 20)).table(name)
    assert rows.select("vin", "ts").rdd.getNumPartitions() == 2


@pytest.mark.slow
def test_a_session_has_its_application_name_and_parallelism(one_spark: SparkSession) -> None:
    session = one_spark.newSession()

    assert session.conf.get("spark.app.id") == session.sparkContext.applicationId
    assert parallelism(session) == measured_parallelism(session) == session.sparkContext.defaultParallelism
