"""`python -m tests.docs docs/start/week.md`: do what a page says, on a platform of its own; does it come out as the page says?

Takes as long as an operator would who does not pause. Ends with exit status 1 where anything came out otherwise.
With PICTURES=1 it makes some of the pictures in docs/img again.
"""

import os
import sys
import tempfile
from pathlib import Path

from manifold.sandbox.platform.ports import free_ports
from tests.docs.page import Shell, environment, steps
from tests.docs.pictures import take
from tests.support.servers import ROOT, free_port

# What a page says of ports, by what stands there instead where it is replayed.
USUAL = {"mqtt_port": "1883", "redis_port": "6390", "airflow_port": "8080"}


def replay(page: Path) -> bool:
    """Whether everything came out as the page says."""
    ports = free_ports() | {"stream_port": free_port()}
    here = {usual: str(ports[name]) for name, usual in USUAL.items()} | {"9099": str(free_port())}
    as_said = True
    with tempfile.TemporaryDirectory(prefix="manifold-page-") as folder:
        for tree in ("docs", ".tools"):
            (Path(folder) / tree).symlink_to(ROOT / tree)
        shell = Shell(Path(folder), environment(ports))
        try:
            told = steps(page.read_text())
            for step in told:
                if step is told[-1] and os.environ.get("PICTURES"):  # the last one stops the platform
                    url, password = f"http://127.0.0.1:{ports['airflow_port']}", shell.run("manifold password").strip()
                    take(url, password, ROOT / "docs" / "img")
                command = step.command
                for usual, port in here.items():
                    command = command.replace(usual, port)
                said = shell.run(command)
                same = step.is_said_by(said)
                as_said &= same
                sys.stdout.write(f"{'as the page says' if same else 'OTHERWISE'}: $ {command}\n{said}\n")
                sys.stdout.flush()
        finally:
            shell.run("manifold down")
            shell.close()
    return as_said


if __name__ == "__main__":
    sys.exit(not all(replay(Path(page)) for page in sys.argv[1:]))
