"""A Prometheus with the project's configuration over the services of a platform."""

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

    def ask(self, expression: str, **over: str) -> list[Any]:
        """Return the series of an expression over a range (start, end, step).

        Raises:
            RuntimeError: Prometheus does not understand the expression.
        """
        answer = self.client.get(f"{self.url}/api/v1/query_range", params={"query": expression, **over}).json()
        if answer["status"] != "success":
            raise RuntimeError(f"{expression}: {answer}")
        found: list[Any] = answer["data"]["result"]
        return found

    def is_ready(self) -> bool:
        """Whether it answers queries."""
        with suppress(httpx.TransportError):
            return self.client.get(f"{self.url}/-/ready").is_success
        return False


@contextmanager
def scraping(platform: Settings, folder: Path, *, every_s: int) -> Iterator[Prometheus]:
    """Scrape every service of the platform every `every_s` seconds, with all files in `folder`.

    Raises:
        RuntimeError: Prometheus ends, or is not ready within `START_S`.
    """
    shutil.copytree(CONFIGURATION, folder / "etc")
    config, port = folder / "etc" / "prometheus.yml", free_ports()["api_port"]
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
            prometheus, deadline = Prometheus(f"http://127.0.0.1:{port}", client), time.monotonic() + START_S
            while not prometheus.is_ready():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Prometheus does not start: {(folder / 'log').read_text()[-2000:]}")
                time.sleep(LOOK_S)
            yield prometheus
        finally:
            process.terminate()


def _targets(platform: Settings) -> list[dict[str, Any]]:
    """As `infra/prometheus/targets/manifold.yml`, at the ports of this platform."""
    ports = {"recorder": platform.recorder_port, "tap": platform.tap_port, "api": platform.api_port}
    ports |= {"signals": platform.signals_port} if platform.with_signals else {}
    ports |= {"campaigner": platform.campaigner_port} if platform.with_campaigns else {}
    services = list(ports.items()) + [("dispatcher", platform.dispatcher_port + n) for n in range(platform.dispatchers)]
    return [{"targets": [f"127.0.0.1:{port}"], "labels": {"service": name}} for name, port in services]
