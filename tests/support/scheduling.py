"""Which worker of the suite gets which tests, and in which order: hooks of pytest."""

from typing import Any

import pytest

# Tests that share an Airflow, sandboxes or a process for jobs go to the same worker. A Spark is started by each worker that gets
# tests with one: it takes less CPU than a few of their runs, and on a single worker they would last twice as long as all others.
AIRFLOW = ("tests/dags/test_browser.py", "tests/dags/test_login.py", "tests/dags/test_real_runs.py")
PROXIED = ("tests/stores/test_guarded_catalog.py", "tests/stores/test_signed_catalog.py")
TOGETHER = (AIRFLOW, ("tests/dispatcher/cases/",), PROXIED)
# The longest start first: if one started last, a single worker would be busy while the others are idle.
FIRST = (
    AIRFLOW[0],
    "tests/dags/test_cluster.py",
    "tests/dispatcher/cases/",
    "tests/dags/test_campaign_runs.py",
    "tests/stores/test_maintenance.py",
    "tests/manifold/console/test_no_noise.py",
    "tests/pipelines/",
    "tests/expectations/",
    "tests/stores/",
    "tests/replicas/",
    "tests/faults/",
    "tests/platform/",
    "tests/examples/",
    "tests/dags/",
    "tests/infra/",
    "tests/manifold/sandbox/",
    "tests/manifold/console/",
    "tests/manifold/signals/",
)


def _scope(nodeid: str) -> str:
    """The scheduling scope of a test: its group in `TOGETHER`, named by the first, or its file."""
    file = nodeid.partition("::")[0]
    return next((group[0] for group in TOGETHER if file.startswith(group)), file)


def _turn(nodeid: str) -> int:
    """The rank of a test: the longest prefix in `FIRST` that matches its scope; slow tests come before fast ones."""
    fits = [first for first in FIRST if _scope(nodeid).startswith(first)]
    return FIRST.index(max(fits, key=len)) if fits else len(FIRST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several workers, distribute tests by group or file."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

        def remove_node(self, node: Any) -> str | None:
            """Forget what a worker has done: if it crashed, xdist would assign that again, and wait for it for ever."""
            self.assigned_work[node] = {
                scope: tests for scope, tests in self.assigned_work[node].items() if not all(tests.values())
            }
            crashed: str | None = super().remove_node(node)
            return crashed

    return ByGroup(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests into the order in which workers get them."""
    items.sort(key=lambda item: _turn(item.nodeid))
