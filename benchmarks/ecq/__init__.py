"""Exclusive compacted queues: how fast a write reaches its consumer, and what it costs, beside the rival's figures."""

from benchmarks.ecq._run import SETTING, Size, run

__all__ = ["SETTING", "Size", "run"]
