"""The examples page lists each example with the addresses of `make up`."""

import re

from manifold.contracts.signals import rights
from manifold.messaging.amqp import password_file
from manifold.runtime import secret_files
from manifold.settings import Settings
from pipelines.spark.conf import ICEBERG_JAR, SQLITE_JAR
from pipelines.spark.jars import COORDINATES
from tests.examples.running import EXAMPLES

README = (EXAMPLES / "README.md").read_text()


def test_the_page_lists_every_example() -> None:
    listed = re.findall(r"^\| `([\w.]+)` \|", README, re.MULTILINE)

    assert sorted(listed) == sorted(file.name for file in EXAMPLES.iterdir() if file.suffix in (".py", ".js"))


def test_addresses_on_the_page_match_default_settings() -> None:
    settings = Settings()
    under_home = [str(settings.catalog), settings.warehouse_url]

    for user, password in ((user, password_file(user)) for user in (rights.GATEWAY, rights.READER)):
        assert f"amqp://{user}:$(cat $secrets/{password})@127.0.0.1:{settings.amqp_port}/" in README
    assert f"secrets={secret_files.folder(settings.home).relative_to(settings.home.parent)}" in README
    assert f"$secrets/{secret_files.HMAC}" in README
    assert [address.replace(str(settings.home.parent), "$PWD") in README for address in under_home] == [True, True]
    assert f"--packages {COORDINATES[ICEBERG_JAR]},{COORDINATES[SQLITE_JAR]}`" in README
    assert f'"MQTT_PORT", "{settings.mqtt_port}"' in (EXAMPLES / "vehicle.py").read_text()
