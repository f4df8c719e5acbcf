"""A real Prometheus with the project's configuration over the services of a platform."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from manifold.settings import Settings
from tests.infra.seen import PROMETHEUS
from tests.support.servers import Server, answers, free_port, start, stopping

CLIENT = httpx.Client(timeout=20)


def targets(platform: Settings) -> list[dict[str, Any]]:
    """Targets like infra/prometheus/targets/manifold.yml, with the ports of this platform."""
    ports = {"recorder": platform.recorder_port, "tap": platform.tap_port, "api": platform.api_port}
    ports |= {"signals": platform.signals_port} if platform.with_signals else {}
    ports |= {"campaigner": platform.campaigner_port} if platform.with_campaigns else {}
    services = list(ports.items()) + [("dispatcher", platform.dispatcher_port + n) for n in range(platform.dispatchers)]
    return [{"targets": [f"127.0.0.1:{port}"], "labels": {"service": name}} for name, port in services]


@contextmanager
def scraping(platform: Settings, folder: Path, *, every_s: int = 1) -> Iterator[Server]:
    """A Prometheus that scrapes every service of the platform at this interval, with its files in the folder."""
    port = free_port()
    shutil.copytree(PROMETHEUS, folder / "etc")
    config = folder / "etc" / "prometheus.yml"
    config.write_text(config.read_text().replace("_interval: 15s", f"_interval: {every_s}s"))
    (folder / "etc" / "targets" / "manifold.yml").write_text(json.dumps(targets(platform)))
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    ready = f"http://127.0.0.1:{port}/-/ready"
    with stopping(start(command, port=port, log=folder / "log", ready=lambda: answers(ready))) as server:
        yield server


def ask(prometheus: Server, expression: str, **over: str) -> list[Any]:
    """The current series of an expression, or those `over` (start, end, step); an invalid expression fails."""
    url = f"http://127.0.0.1:{prometheus.port}/api/v1/{'query_range' if over else 'query'}"
    answer = CLIENT.get(url, params={"query": expression, **over}).json()
    assert answer["status"] == "success", f"{expression}: {answer}"
    found: list[Any] = answer["data"]["result"]
    return found
