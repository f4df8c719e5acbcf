"""The example of a campaign, from its proposal to its end, with a platform and the two vehicles of its plan."""

import json
import sys
from pathlib import Path

import pytest

from manifold.campaigns.record import read_facts
from manifold.campaigns.verification import verify
from manifold.settings import Settings
from tests.examples.running import EXAMPLES, at_broker, run, run_python, running

pytestmark = pytest.mark.slow
PLAN = EXAMPLES / "campaign.json"


def test_the_example_campaign_is_proposed_approved_and_watched_to_its_end(platform: Settings, tmp_path: Path) -> None:
    env, plan = at_broker(platform), json.loads(PLAN.read_text())
    first, second = plan["targets"]["vins"]
    (tmp_path / "data").write_bytes(bytes(33))
    with running("vehicle.py", first, folder=tmp_path, env=env) as own:
        (tmp_path / "b").mkdir()
        with running("vehicle.py", second, folder=tmp_path / "b", env=env) as other:
            lines = run_python("campaign.py", PLAN, "data", folder=tmp_path, env=env | {"API_URL": platform.api})
            got = [own.prints(1), other.prints(1)]

    assert [line.split()[:2] for line in lines if " recorded " in line] == [
        [what, "recorded"] for what in ("data", "propose", "approve", "approve")
    ]
    assert "held: own car: 1 of 1; rest: 0 of 1" in lines
    assert lines[-1] == "completed: own car: 1 of 1; rest: 1 of 1"
    assert [len(each) for each in got] == [1, 1]
    assert all("33 bytes" in each[0] for each in got)
    assert verify(read_facts(platform, plan["campaign"])) == ()


def test_the_example_says_why_a_plan_was_refused(platform: Settings, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x")
    plan = json.loads(PLAN.read_text()) | {"campaign": "a/b", "data_id": "no_campaign"}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    done = run(sys.executable, EXAMPLES / "campaign.py", "plan.json", "data", folder=tmp_path, env=at_broker(platform))

    assert done.returncode == 1, done.stderr
    assert "propose refused" in done.stdout
    assert "campaign: must be 1 to 128 printable" in done.stdout
