"""`python -m tests.manifold.recorder.dying_recorder`: a recorder that dies while parsing the request `fatal`.

It imitates memory exhaustion or a crashing library. Processes that the recorder starts import this module too.
"""

import json
import os
import signal
import sys
from typing import Any

_loads = json.loads


def loads(text: Any, **more: Any) -> Any:
    """The replacement of `json.loads`."""
    if "fatal" in str(text):
        os.kill(os.getpid(), signal.SIGKILL)
    return _loads(text, **more)


json.loads = loads  # type: ignore[assignment]

if __name__ == "__main__":
    from manifold.recorder.__main__ import main

    sys.exit(main())
