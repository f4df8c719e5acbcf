"""The quality rules of every table, each with severity and reason, and the audit that judges a run by them.

It promises that a run that breaks a rule of severity `error` is not published, and that every verdict is kept with its numbers.
It judges tables and changes none.
"""

from expectations._audit import audit
from expectations._findings import Audit, Finding
from expectations._pages import record_states
from expectations._results import results_of
from expectations._rules import Severity
from expectations._suites import Suite, load_suites
from expectations._trends import publish_trends

__all__ = ["Audit", "Finding", "Severity", "Suite", "audit", "load_suites", "publish_trends", "record_states", "results_of"]
