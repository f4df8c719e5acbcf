"""Opens the catalog for a job: waits while it is unavailable or locked, then raises an error with the remedy."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ServerError, ServiceUnavailableError, TooManyRequestsError
from requests.exceptions import ConnectionError as HttpConnectionError
from requests.exceptions import Timeout
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from manifold.contracts.errors import Retryable
from manifold.lake.catalog import LOGIN_REFUSED, ensure_tables, login_refused, open_catalog
from manifold.settings import Settings

_REST_SAYS_LATER = (ServerError, ServiceUnavailableError, TooManyRequestsError)
UNAVAILABLE_ERRORS = (DBAPIError, PoolTimeout, sqlite3.OperationalError, HttpConnectionError, Timeout, *_REST_SAYS_LATER)
# How the Java side of a job reports the same; its exceptions all arrive as one class.
AWAY_IN_JAVA = (
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "java.net.ConnectException",
    "UncheckedSQLException",
    "ServiceUnavailableException",
)
_ROOT_CAUSE = re.compile("^Caused by: (.+)", re.MULTILINE)
REFUSED_IN_JAVA = ("NotAuthorizedException", "iceberg.exceptions.ForbiddenException")
LONGEST_PAUSE_S = 5

log = structlog.get_logger(__name__)


class CatalogAway(Retryable):
    """The catalog was unavailable for as long as a job waits. Work done so far is kept; run the job again to continue."""


def await_catalog(settings: Settings) -> Catalog:
    """Return the catalog, once it answers.

    Raises:
        CatalogAway: it does not answer within `catalog_wait_seconds`.
        Permanent: it refuses the login.
    """
    tries = Retrying(
        retry=retry_if_exception_type(UNAVAILABLE_ERRORS),
        stop=stop_after_delay(settings.catalog_wait_seconds),
        wait=wait_random_exponential(multiplier=0.1, max=LONGEST_PAUSE_S),
        before_sleep=_log_retry,
        reraise=True,
    )
    with naming_the_catalog(settings):
        return tries(_open_and_ping, settings)


def open_lake(settings: Settings) -> Catalog:
    """Return the catalog, once it answers, with every table.

    Raises:
        CatalogAway, Permanent: as `await_catalog`.
    """
    catalog = await_catalog(settings)
    ensure_tables(catalog)
    return catalog


def _open_and_ping(settings: Settings) -> Catalog:
    catalog = open_catalog(settings)
    catalog.list_namespaces()
    return catalog


@contextmanager
def naming_the_catalog(settings: Settings) -> Iterator[None]:
    """Turn catalog failures in the block into errors that name the catalog and the remedy.

    Raises:
        CatalogAway: it could not be reached.
        Permanent: it refuses the login.
    """
    try:
        yield
    except UNAVAILABLE_ERRORS as exc:
        raise _away(settings, exc) from exc
    except LOGIN_REFUSED as exc:
        raise login_refused(settings, exc) from exc
    except Py4JJavaError as exc:
        if any(sign in str(exc) for sign in REFUSED_IN_JAVA):
            raise login_refused(settings, exc) from exc
        if any(sign in str(exc) for sign in AWAY_IN_JAVA):
            raise _away(settings, exc) from exc
        raise


def _away(settings: Settings, exc: Exception) -> CatalogAway:
    name = "MANIFOLD_CATALOG_URI" if settings.catalog_uri.get_secret_value() else "MANIFOLD_HOME"
    at = settings.catalog.split("@")[-1]  # without the password
    why = " ".join((_ROOT_CAUSE.findall(str(exc)) or [str(exc)])[-1].split())[:200]
    return CatalogAway(
        f"the catalog {at} is away or locked ({why}); see that it runs, that {name} names it and that no other program holds "
        f"its lock, then run this again; MANIFOLD_CATALOG_WAIT_SECONDS={settings.catalog_wait_seconds:g} is how long a job waits"
    )


def _log_retry(state: RetryCallState) -> None:
    failed = state.outcome.exception() if state.outcome else None
    log.warning("catalog does not answer; trying again", attempt=state.attempt_number, reason=" ".join(str(failed).split())[:200])
