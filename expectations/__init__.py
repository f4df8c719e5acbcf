"""The quality rules of every table, and the audit that checks the rows of a run against these rules.

Each rule has a severity and a reason. A run that breaks a rule of severity `error` is not published. The results of all audits
are kept. An audit reads tables and never changes them.
"""

from expectations._audit import audit
from expectations._findings import Audit, Finding, results_of
from expectations._pages import record_states
from expectations._suites import Suite, load_suites
from expectations._trends import publish_trends
from manifold.contracts.tables import Severity

__all__ = ["Audit", "Finding", "Severity", "Suite", "audit", "load_suites", "publish_trends", "record_states", "results_of"]
