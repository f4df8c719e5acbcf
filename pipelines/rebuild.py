"""Refill empty queues from the lake: `python -m pipelines.rebuild`. First everything recorded goes into the lake."""

import sys

from pipelines.run_all import rebuild

__all__ = ["rebuild"]

if __name__ == "__main__":
    from pipelines.cli import main

    sys.exit(main("rebuild"))
