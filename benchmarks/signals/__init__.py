"""The AMQP door: what one process sustains, and two, beside a client that acknowledges only; latency; large payloads; ingest."""

from benchmarks.signals._run import SETTING, Size, run

__all__ = ["SETTING", "Size", "run"]
