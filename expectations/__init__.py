"""Quality rules of every table, each with severity and reason, and the audit that holds a run against them."""

from expectations._audit import audit
from expectations._findings import Audit, Finding
from expectations._results import results_of
from expectations._suites import Severity, Suite, load_suites

__all__ = ["Audit", "Finding", "Severity", "Suite", "audit", "load_suites", "results_of"]
