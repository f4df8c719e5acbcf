"""Runs Prometheus with the project's configuration, to scrape the services of a platform."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from manifold.sandbox.platform.ports import free_ports
from manifold.settings import Settings

CONFIGURATION = Path(__file__).resolve().parents[2] / "prometheus"
START_S, LOOK_S = 60.0, 0.1


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running Prometheus."""

    url: str
    client: httpx.Client

    def query(self, expression: str, **query_range: str) -> list[Any]:
        """Return the series of an expression over a range, which has `start`, `end` and `step`, in seconds as text.

        Raises:
            RuntimeError: Prometheus does not understand the expression.
        """
        answer = self.client.get(f"{self.url}/api/v1/query_range", params={"query": expression, **query_range}).json()
        if answer["status"] != "success":
            raise RuntimeError(f"{expression}: {answer}")
        series: list[Any] = answer["data"]["result"]
        return series

    def is_ready(self) -> bool:
        """Whether Prometheus answers queries."""
        with suppress(httpx.TransportError):
            return self.client.get(f"{self.url}/-/ready").is_success
        return False


@contextmanager
def scraping(platform: Settings, folder: Path, *, every_s: int) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes every service of the platform every `every_s` seconds; its files are in `folder`.

    Raises:
        RuntimeError: Prometheus ends, or is not ready within `START_S`.
    """
    shutil.copytree(CONFIGURATION, folder / "etc")
    config = folder / "etc" / "prometheus.yml"
    port = free_ports()["api_port"]
    config.write_text(config.read_text().replace("_interval: 15s", f"_interval: {every_s}s"))
    (folder / "etc" / "targets" / "manifold.yml").write_text(json.dumps(_targets(platform)))
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as process,
        httpx.Client(timeout=20) as client,
    ):
        try:
            prometheus = Prometheus(f"http://127.0.0.1:{port}", client)
            deadline = time.monotonic() + START_S
            while not prometheus.is_ready():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Prometheus does not start: {(folder / 'log').read_text()[-2000:]}")
                time.sleep(LOOK_S)
            yield prometheus
        finally:
            process.terminate()


def _targets(platform: Settings) -> list[dict[str, Any]]:
    """Return the same targets as in `infra/prometheus/targets/manifold.yml`, but with the ports of this platform."""
    services = [("recorder", platform.recorder_port), ("tap", platform.tap_port), ("api", platform.api_port)]
    if platform.with_signals:
        services.append(("signals", platform.signals_port))
    if platform.with_campaigns:
        services.append(("campaigner", platform.campaigner_port))
    services += [("dispatcher", platform.dispatcher_port + replica) for replica in range(platform.dispatchers)]
    return [{"targets": [f"127.0.0.1:{port}"], "labels": {"service": name}} for name, port in services]
