"""MQTT works without AMQP: nothing of RabbitMQ is started or imported if signals are off or RabbitMQ is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

from manifold.sandbox.platform import rabbitmq
from manifold.sandbox.platform.programs import programs
from manifold.settings import Settings
from tests.support.servers import ROOT

OF_SIGNALS = {"rabbitmq", "epmd", "signals"}


def kinds(settings: Settings) -> set[str]:
    return {program.kind for program in programs(settings)}


def test_without_signals_nothing_of_them_is_started(tmp_path: Path) -> None:
    assert not kinds(Settings(home=tmp_path, with_signals=False)) & OF_SIGNALS


def test_without_rabbitmq_the_rest_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rabbitmq, "DEBIAN", tmp_path / "none")
    monkeypatch.setenv("PATH", "")

    assert kinds(Settings(home=tmp_path, with_signals=True)) == kinds(Settings(home=tmp_path, with_signals=False))


@pytest.mark.parametrize("service", ["manifold.recorder", "dispatcher", "manifold.sandbox.tap", "manifold.queues"])
def test_the_mqtt_side_imports_nothing_of_amqp(service: str) -> None:
    script = f"import {service}, sys; print(*{{'aio_pika', 'aiormq', 'pamqp', 'manifold.signals'}}.intersection(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.split() == []
