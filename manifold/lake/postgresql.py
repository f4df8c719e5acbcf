"""Time limits for a PostgreSQL catalog. Without limits, libpq waits forever for a server that hangs or is gone.

PyIceberg passes only a URL to SQLAlchemy. Therefore the limits are parameters of the URL, and an SQLAlchemy plug-in reads them.
They are set by the catalog properties that also set the limits of Spark's JDBC driver, and have the same names.
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
CHECK_INTERVAL_S = 0.1  # between two checks of the limit, while a connection waits


class PatientConnection(Connection[Any]):
    """A connection that closes, and raises `psycopg.OperationalError`, if the server does not respond to a command in time."""

    answer_s = float(JDBC_DEFAULT_S[JDBC_ANSWER])

    def wait(self, gen: PQGen[RV], interval: float = CHECK_INTERVAL_S, timeout: float | None = None) -> RV:
        """Run `gen`, the driver's generator that executes a command, for at most `answer_s` seconds; return its result."""
        limited = self._with_deadline(gen, monotonic() + self.answer_s)
        if timeout is None:  # not passed on, because older versions of the driver have no such parameter
            return super().wait(limited, interval)
        return super().wait(limited, interval, timeout=timeout)

    def _with_deadline(self, gen: PQGen[RV], deadline: float) -> PQGen[RV]:
        """Wrap `gen`, which yields what it waits for and is sent the state of the socket, so that it fails after the deadline.

        The driver sends the state once per interval of `wait`, even if nothing has arrived; so the deadline is checked as often.
        """
        try:
            waits_for = next(gen)
            while True:
                ready = yield waits_for
                if monotonic() > deadline:
                    self.close()
                    raise OperationalError(f"no answer within {self.answer_s:g} s")
                waits_for = gen.send(ready)
        except StopIteration as stop:
            result: RV = stop.value
            return result


class TimeLimits(CreateEnginePlugin):
    """The SQLAlchemy plug-in, which makes an engine connect through `PatientConnection`."""

    def __init__(self, url: URL, kwargs: dict[str, Any]) -> None:
        super().__init__(url, kwargs)
        self._connect_s = _limit_s(url, JDBC_CONNECT)
        self._answer_s = _limit_s(url, JDBC_ANSWER)

    def update_url(self, url: URL) -> URL:
        """The URL without the plug-in's parameters."""
        return url.difference_update_query(["plugin", JDBC_CONNECT, JDBC_ANSWER])

    def engine_created(self, engine: Engine) -> None:
        """Let `_connect` open each connection of the engine."""
        event.listen(engine, "do_connect", self._connect)

    def _connect(self, dialect: object, record: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PatientConnection:
        """Open a connection, instead of the driver: with the URL's limits, unless the arguments have a `connect_timeout`."""
        del dialect, record
        connection = PatientConnection.connect(*args, **{"connect_timeout": self._connect_s, **kwargs})
        connection.answer_s = self._answer_s
        return connection


def with_time_limits(uri: str, properties: Mapping[str, str]) -> str:
    """The URL with time limits as parameters: those that are among these catalog properties, or else their defaults.

    URLs of other databases and drivers are returned unchanged.

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


def _limit_s(url: URL, name: str) -> int:
    """A limit in seconds, from the parameter of the URL that `with_time_limits` has set."""
    limit = url.query.get(name)
    assert isinstance(limit, str), "with_time_limits sets every limit, once"
    return int(limit)


plugins.register(PLUGIN, __name__, TimeLimits.__name__)
