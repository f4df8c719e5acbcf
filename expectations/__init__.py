"""The quality rules of every table, each with a severity and a reason, and the audit that checks a run against them.

A run that breaks a rule of severity `error` is not published, and every audit result is kept with its counts. Tables are read,
never changed.
"""

from expectations._audit import audit
from expectations._findings import Audit, Finding, results_of
from expectations._pages import record_states
from expectations._rules import Severity
from expectations._suites import Suite, load_suites
from expectations._trends import publish_trends

__all__ = ["Audit", "Finding", "Severity", "Suite", "audit", "load_suites", "publish_trends", "record_states", "results_of"]
