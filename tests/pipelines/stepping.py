"""Concurrent runs, one step at a time: the test chooses which one continues, is paused or is killed.

Publication consists of catalog calls, so it is played on the SQL catalog of runs, over real tables. Each player is a thread with
its own catalog; it stops before each call that can observe others or be observed: before reading mains that belong together,
before a main moves, and before a run opens or closes. `fine`: before each call about a main.
"""

import threading
from collections.abc import Callable
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import RemovePropertiesUpdate, SetPropertiesUpdate, SetSnapshotRefUpdate

from manifold.contracts.tables import IDS, SEGMENTS
from manifold.lake.sql_catalog import CachingSqlCatalog
from manifold.settings import Settings

WAIT_S = 60
SEEN = (SEGMENTS.identifier, IDS.identifier)  # readers of these read everything


class Killed(BaseException):
    """The player is dead: its cleanup never reaches the catalog."""


class Turns(CachingSqlCatalog):
    """The SQL catalog that yields to the scheduler before each call that others can observe, or that observes others."""

    def __init__(self, settings: Settings, ask: Callable[[str], None], *, fine: bool) -> None:
        self._ask: Callable[[str], None] = lambda _: None
        self._inside, self._fine, self._before = False, fine, ""
        super().__init__(settings.catalog_name, uri=settings.catalog, warehouse=settings.warehouse_url)
        self._ask = ask

    def load_table(self, identifier: Any) -> IcebergTable:
        """Yield first if runs decide by this table."""
        if identifier in SEEN and not self._inside:
            if self._fine or (identifier == IDS.identifier and self._before == SEGMENTS.identifier):
                self._ask(f"read {identifier}")
            self._before = identifier
        return super().load_table(identifier)

    def commit_table(self, table: IcebergTable, requirements: Any, updates: Any) -> Any:
        """Yield first if main moves, or a run opens or closes; commits on a run's own branches are invisible."""
        moves_main = any(isinstance(u, SetSnapshotRefUpdate) and u.ref_name == MAIN_BRANCH for u in updates)
        opens_or_closes = any(isinstance(u, SetPropertiesUpdate | RemovePropertiesUpdate) for u in updates)
        if moves_main or opens_or_closes or self._fine:
            self._ask(f"commit {'.'.join(table.name())}")
        self._before = ""
        self._inside = True
        try:
            return super().commit_table(table, requirements, updates)
        finally:
            self._inside = False


class Player:
    """A thread that runs `work` with its own catalog, as far as it is allowed to."""

    def __init__(self, settings: Settings, work: Callable[[SqlCatalog], Any], *, fine: bool = False) -> None:
        self.steps: list[str] = []  # the pending call at each stop
        self.problem: BaseException | None = None
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._dead, self._over, self._left = False, False, 0
        self._until: str | None = None
        self._thread = threading.Thread(target=self._run, args=(settings, work, fine), daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether it has finished."""
        return self._over

    def go(self, steps: int | None = None, *, until: str | None = None) -> "Player":
        """Allow this many steps, all remaining ones, or all before a step like `until`; raise its error here."""
        self._left, self._until = steps if steps is not None else 1 << 30, until
        if not self._over:
            self._go.release()
            assert self._stopped.acquire(timeout=WAIT_S), f"stuck after {self.steps[-3:]}"
        if self.problem is not None:
            problem, self.problem = self.problem, None
            raise problem
        return self

    def kill(self) -> None:
        """End it at its current step."""
        self._dead = True
        if not self._over:
            self.go()

    def _run(self, settings: Settings, work: Callable[[SqlCatalog], Any], fine: bool) -> None:
        self._go.acquire()
        try:
            if not self._dead:
                work(Turns(settings, self._ask, fine=fine))
        except Killed:
            pass
        except BaseException as exc:  # noqa: BLE001  # raised in the caller
            self.problem = exc
        self._over = True
        self._stopped.release()

    def _ask(self, what: str) -> None:
        if not self._dead:
            self.steps.append(what)
            if self._left == 0 or what == self._until:
                self._stopped.release()
                self._go.acquire()
            self._left -= 1
        if self._dead:
            raise Killed
