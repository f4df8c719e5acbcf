"""The first publish of the README, as printed, and what a publisher learns from a denied publish."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from manifold.contracts import topics
from manifold.contracts.messages import Trigger, parse_trigger
from manifold.settings import Settings
from tests.manifold.sandbox.tap.conftest import TapServer
from tests.manifold.sandbox.tap.raw_connection import PUBLISH, RawConnection, puback
from tests.support.servers import ROOT

pytestmark = pytest.mark.skipif(
    shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed: apt-get install mosquitto-clients"
)


def output_of(server: TapServer, folder: Path, script: str) -> str:
    """The output of a shell for `script`; the client's own options file points it to this broker's port."""
    (folder / "mosquitto_pub").write_text(f"-p {server.port}\n")
    env = {**os.environ, "XDG_CONFIG_HOME": str(folder)}
    done = subprocess.run(["bash", "-euc", script], env=env, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout + done.stderr


def test_the_first_publish_of_the_tour_reaches_the_recorder_as_printed(tap_server: TapServer, tmp_path: Path) -> None:
    tour = (ROOT / "docs" / "start" / "tour.md").read_text()
    (script,) = re.findall(r"^```sh\n(mosquitto_pub .*?)^```", tour, re.DOTALL | re.MULTILINE)
    limits = Settings()

    with RawConnection(tap_server.port) as recorder:
        recorder.open("sdv-first", username="sdv-recorder")
        recorder.listen(topics.FANOUT_FILTER)
        assert output_of(tap_server, tmp_path, script) == ""
        data = recorder.expect(PUBLISH)
        recorder.send(puback(data.mid))
        batch = recorder.expect(PUBLISH)

    trigger = parse_trigger(batch.payload, max_ids=limits.max_ids, max_data_bytes=limits.max_data_bytes)
    assert isinstance(trigger, Trigger)
    assert (data.topic, batch.topic) == (topics.data_topic(str(trigger.data_id)), topics.TRIGGER)


def test_a_denied_publish_is_reported_by_mqtt_5_and_not_by_3_1_1(tap_server: TapServer, tmp_path: Path) -> None:
    without_a_name = "mosquitto_pub -q 1 -i sdv-pub-first -t '$SDV-FANOUT/data/denied' -m x"

    assert "not authorized" in output_of(tap_server, tmp_path, f"{without_a_name} -V 5 2>&1 || true").lower()
    assert output_of(tap_server, tmp_path, f"{without_a_name} -V 311") == ""
