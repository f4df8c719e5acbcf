"""The log format of a process."""

import json
import subprocess
import sys

SCRIPT = """
import logging, structlog, threading
from manifold.runtime.log import configure_logging
configure_logging("probe", json={json}, level="info")
structlog.get_logger("room").info("entry queued", vin="VIN1", seq=7)
structlog.get_logger("room").debug("never seen")
logging.getLogger("library").warning("told by a %s", "library")
beside = threading.Thread(target=structlog.get_logger("room").info, args=("told by a thread",))
beside.start()
beside.join()
"""


def _lines(*, as_json: bool) -> list[str]:
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(json=as_json)], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()


def test_lines_are_key_value_pairs_for_people() -> None:
    own, library, thread = _lines(as_json=False)
    assert "service='probe' event='entry queued'" in own
    assert "vin='VIN1' seq=7" in own
    assert "level='warning'" in library
    assert "event='told by a library'" in library
    assert "level='info' service='probe' event='told by a thread'" in thread


def test_lines_are_json_for_machines() -> None:
    own, library, thread = map(json.loads, _lines(as_json=True))
    assert (own["service"], own["level"], own["event"], own["vin"], own["seq"]) == ("probe", "info", "entry queued", "VIN1", 7)
    assert (library["service"], library["event"]) == ("probe", "told by a library")
    assert (thread["service"], thread["event"]) == ("probe", "told by a thread")
