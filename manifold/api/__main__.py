"""`python -m manifold.api`: the read side as an HTTP service, until SIGTERM or SIGINT."""

import sys

from manifold.api._server import serve
from manifold.runtime.service import run_service


def main() -> int:
    """Run the service; return the exit status: 0 after an orderly stop, 2 for a problem that the operator must fix."""
    return run_service("api", serve)


if __name__ == "__main__":
    sys.exit(main())
