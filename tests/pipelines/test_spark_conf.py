"""What Spark is told, and what it shows of it."""

import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession

from adapters.lake import open_catalog
from contracts.errors import Permanent
from contracts.settings import Settings
from pipelines.spark.conf import REDACTED, S3_JAR, jars_for, session_conf
from pipelines.spark.session import configure

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


def test_properties_of_the_catalog_reach_spark_under_its_name() -> None:
    conf = session_conf(GUARDED)

    assert conf["spark.sql.catalog.manifold.credential"] == "me:hunter2"
    assert conf["spark.sql.catalog.manifold.scope"] == "lake"
    assert conf["spark.sql.catalog.manifold.warehouse"] == "fleet"
    assert "spark.sql.catalog.manifold.io-impl" not in conf  # Iceberg chooses by the address of each file
    assert S3_JAR in jars_for(GUARDED)


@pytest.mark.slow
def test_spark_shows_none_of_them_and_keeps_what_a_site_hides(one_spark: SparkSession) -> None:
    session = one_spark.newSession()
    session.conf.set(REDACTED, "(?i)url|of-the-site")
    session.conf.set("spark.of-the-site", "hunter2")

    configure(session, GUARDED)

    said = {row["key"]: row["value"] for row in session.sql("SET").collect()}
    assert said["spark.sql.catalog.manifold.credential"] == "*********(redacted)"
    assert "hunter2" not in str(said)
    assert "hunter2" not in str(session.sparkContext.getConf().getAll())  # of which a page and the event log are made
    assert session.conf.get("spark.sql.catalog.manifold.credential") == "me:hunter2"


def test_signing_says_which_library_it_needs() -> None:
    signing = Settings(catalog_type="rest", catalog_uri=AWAY, warehouse="file:///lake", catalog_properties=SIGNED)

    assert S3_JAR in jars_for(signing)
    with pytest.raises(Permanent, match="MANIFOLD_CATALOG_PROPERTIES asks for needs boto3"):
        open_catalog(signing)
