"""Throughput and cost of one dispatcher, against the raw limit of its client library over the same broker and vehicles."""

from benchmarks.dispatch._run import SETTING, run
from benchmarks.dispatch._size import Size

__all__ = ["SETTING", "Size", "run"]
