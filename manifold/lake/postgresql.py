"""Time limits for a PostgreSQL catalog. libpq has none, and would wait forever for a server that hangs or is gone.

PyIceberg creates the engine from the URL alone, so the limits are part of the URL, for an SQLAlchemy plug-in. They have the
names that Spark's JDBC driver uses, and come from the same properties of the catalog.
"""

from collections.abc import Mapping
from time import monotonic
from typing import Any

from psycopg import Connection, OperationalError
from psycopg.abc import RV, PQGen
from sqlalchemy import URL, Engine, event, make_url
from sqlalchemy.dialects import plugins
from sqlalchemy.engine import CreateEnginePlugin

from manifold.contracts.catalog_properties import JDBC_ANSWER, JDBC_CONNECT, JDBC_DEFAULT_S
from manifold.contracts.errors import Permanent

PLUGIN = "manifold_limits"
LOOK_S = 0.1  # how often a waiting connection checks its limit


class PatientConnection(Connection[Any]):
    """A connection that raises `psycopg.OperationalError`, and is closed, if a command is not answered in time."""

    answer_s = float(JDBC_DEFAULT_S[JDBC_ANSWER])

    def wait(self, gen: PQGen[RV], interval: float = LOOK_S, timeout: float | None = None) -> RV:
        """Wait as the driver does, up to the limit."""
        more = {} if timeout is None else {"timeout": timeout}
        return super().wait(self._until(gen, monotonic() + self.answer_s), interval, **more)

    def _until(self, gen: PQGen[RV], end: float) -> PQGen[RV]:
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if monotonic() > end:
                    self.close()
                    raise OperationalError(f"no answer within {self.answer_s:g} s")
                wanted = gen.send(ready)
        except StopIteration as over:
            result: RV = over.value
            return result


class Limits(CreateEnginePlugin):
    """The plug-in: an engine that opens a `PatientConnection` each time."""

    def __init__(self, url: URL, kwargs: dict[str, Any]) -> None:
        super().__init__(url, kwargs)
        self._connect_s, self._answer_s = (_limit(url.query.get(name)) for name in (JDBC_CONNECT, JDBC_ANSWER))

    def update_url(self, url: URL) -> URL:
        """The URL without the plug-in's parameters."""
        return url.difference_update_query(["plugin", JDBC_CONNECT, JDBC_ANSWER])

    def engine_created(self, engine: Engine) -> None:
        """Make the engine connect through `PatientConnection`."""
        event.listen(engine, "do_connect", self._connect)

    def _connect(self, dialect: object, record: object, given: tuple[Any, ...], named: dict[str, Any]) -> PatientConnection:
        del dialect, record
        made = PatientConnection.connect(*given, **{"connect_timeout": self._connect_s, **named})
        made.answer_s = self._answer_s
        return made


def with_limits(uri: str, properties: Mapping[str, str]) -> str:
    """The URL with the limits among these properties, or the default ones.

    Raises:
        Permanent: a limit is not a whole number of seconds above 0.
    """
    limits = {name: properties.get(name, limit) for name, limit in JDBC_DEFAULT_S.items()}
    for name, limit in limits.items():
        if not (limit.isascii() and limit.isdecimal() and int(limit)):
            raise Permanent(
                f"{name}={limit} in MANIFOLD_CATALOG_PROPERTIES is not a whole number of seconds above 0: 60 is a minute"
            )
    url = make_url(uri)
    if url.get_backend_name() != "postgresql" or url.get_driver_name() != "psycopg":
        return uri
    return url.update_query_dict({"plugin": PLUGIN, **limits}).render_as_string(hide_password=False)


def _limit(limit: str | tuple[str, ...] | None) -> int:
    assert isinstance(limit, str), "with_limits names every limit"
    return int(limit)


plugins.register(PLUGIN, __name__, Limits.__name__)
