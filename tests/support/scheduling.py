"""A scheduler of pytest-xdist that survives the crash of a worker."""

from collections.abc import Callable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


def by_scope(config: pytest.Config, log: Any, scope_of: Callable[[str], str]) -> LoadScopeScheduling:
    """A scheduler that keeps tests together whose ids have the same scope."""

    class ByScope(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

        def remove_node(self, node: Any) -> str | None:
            """Forget what a worker has done: if it crashed, xdist would assign that again, and wait for it for ever."""
            self.assigned_work[node] = {
                scope: tests for scope, tests in self.assigned_work[node].items() if not all(tests.values())
            }
            crashed: str | None = super().remove_node(node)
            return crashed

    return ByScope(config, log)
