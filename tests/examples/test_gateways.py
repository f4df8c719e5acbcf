"""The gateway examples, in Python and in Node, against a real signals service."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from manifold.contracts.signals import rights
from manifold.messaging.amqp import connection_url
from tests.examples.running import EXAMPLES, run, run_python
from tests.manifold.signals.gateway import SECRET, Door, Gateway

UNREACHABLE = re.compile(r"code (ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENETUNREACH|ETIMEDOUT|ERR_SOCKET_TIMEOUT|E50\d)")
NODE_FILES = ("gateway.js", "package.json", "package-lock.json")
READING = {"readings": [{"type": "temperature", "value": 20.5, "unit": "celsius", "confidence": 0.95}], "anomalies": []}


def environment(door: Door, secret: str = SECRET) -> dict[str, str]:
    uris = {"RABBITMQ_URI": rights.GATEWAY, "READER_URI": rights.READER}
    return {name: connection_url(door.settings, as_user=user) for name, user in uris.items()} | {"HMAC_SECRET_KEY": secret}


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A folder with the Node example and its package."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed (Debian: apt-get install nodejs npm)")
    for name in NODE_FILES:
        shutil.copy(EXAMPLES / name, tmp_path)
    done = run(npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0", folder=tmp_path)
    if UNREACHABLE.search(done.stderr):
        pytest.skip(f"npm cannot reach its registry to fetch amqplib: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    return tmp_path


def test_the_python_gateway_has_its_signal_processed(door: Door, gateway: Gateway, tmp_path: Path) -> None:
    (line,) = run_python("gateway.py", "device-123", folder=tmp_path, env=environment(door))

    _, body = gateway.get("xray.processed.v1")
    processed = json.loads(body)
    assert line == f"published {processed['correlationId']}"
    assert (processed["deviceId"], processed["processedData"]) == ("device-123", READING)


def test_the_python_gateway_prints_why_its_message_was_refused(door: Door, tmp_path: Path) -> None:
    done = run(sys.executable, EXAMPLES / "gateway.py", "device-123", folder=tmp_path, env=environment(door, "wrong"))

    assert done.returncode == 1
    assert "SIGNATURE_ERROR" in done.stderr


def test_the_node_gateway_has_its_signal_processed_and_consumes_it(door: Door, node: Path) -> None:
    done = run("node", "gateway.js", "device-124", folder=node, env=environment(door))

    assert done.returncode == 0, done.stderr
    published, processed = done.stdout.splitlines()
    assert processed == f"processed device-124 {json.dumps(READING, separators=(',', ':'))}"
    assert re.fullmatch(r"published [0-9a-f-]{36}", published)
    assert len(door.recorded()) == 1


def test_the_package_lock_has_checksums_and_names_no_registry() -> None:
    packages = json.loads((EXAMPLES / "package-lock.json").read_text())["packages"]
    wanted = json.loads((EXAMPLES / "package.json").read_text())["dependencies"]

    locked = {name.removeprefix("node_modules/"): about for name, about in packages.items() if name}
    assert {name: about["version"] for name, about in locked.items()} == wanted
    assert all(about["integrity"].startswith("sha512-") and "resolved" not in about for about in locked.values())
