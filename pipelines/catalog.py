"""Opens the catalog for a job. The job waits while the catalog is unavailable or locked, then fails with an error."""

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
from manifold.lake.catalog import LOGIN_REFUSED, address_of, ensure_tables, login_refused, open_catalog
from manifold.settings import Settings

_REST_UNAVAILABLE_ERRORS = (ServerError, ServiceUnavailableError, TooManyRequestsError)
UNAVAILABLE_ERRORS = (DBAPIError, PoolTimeout, sqlite3.OperationalError, HttpConnectionError, Timeout, *_REST_UNAVAILABLE_ERRORS)
# Names of Java errors that mean an unavailable catalog. Py4J raises every Java error as Py4JJavaError, so its text is searched.
UNAVAILABLE_IN_JAVA = (
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "java.net.ConnectException",
    "UncheckedSQLException",
    "ServiceUnavailableException",
)
_ROOT_CAUSE = re.compile("^Caused by: (.+)", re.MULTILINE)
LOGIN_REFUSED_IN_JAVA = ("NotAuthorizedException", "iceberg.exceptions.ForbiddenException")
MAX_RETRY_DELAY_S = 5
MAX_REASON_LENGTH = 200  # characters of an exception's text in messages and logs

log = structlog.get_logger(__name__)


class CatalogAway(Retryable):
    """The catalog stayed unavailable for `catalog_wait_seconds`. Finished work is kept; run the job again to continue."""


def await_catalog(settings: Settings) -> Catalog:
    """Wait until the catalog answers, and return it.

    Raises:
        CatalogAway: the catalog does not answer within `catalog_wait_seconds`.
        Permanent: the catalog refuses the login.
    """
    retrying = Retrying(
        retry=retry_if_exception_type(UNAVAILABLE_ERRORS),
        stop=stop_after_delay(settings.catalog_wait_seconds),
        wait=wait_random_exponential(multiplier=0.1, max=MAX_RETRY_DELAY_S),
        before_sleep=_log_retry,
        reraise=True,
    )
    with naming_the_catalog(settings):
        return retrying(_open_and_ping, settings)


def open_lake(settings: Settings) -> Catalog:
    """Wait until the catalog answers, create the missing tables, and return the catalog.

    Raises:
        CatalogAway: the catalog does not answer within `catalog_wait_seconds`.
        Permanent: the catalog refuses the login.
    """
    catalog = await_catalog(settings)
    ensure_tables(catalog)
    return catalog


def _open_and_ping(settings: Settings) -> Catalog:
    """Open the catalog; raise one of `UNAVAILABLE_ERRORS` if it does not answer."""
    catalog = open_catalog(settings)
    catalog.list_namespaces()  # a request, because opening alone may not connect
    return catalog


@contextmanager
def naming_the_catalog(settings: Settings) -> Iterator[None]:
    """Turn catalog failures in the block into errors that name the catalog and the remedy.

    Raises:
        CatalogAway: the catalog could not be reached, or is locked.
        Permanent: the catalog refuses the login.
    """
    try:
        yield
    except UNAVAILABLE_ERRORS as exc:
        raise _catalog_away(settings, exc) from exc
    except LOGIN_REFUSED as exc:
        raise login_refused(settings, exc) from exc
    except Py4JJavaError as exc:
        if any(error_name in str(exc) for error_name in LOGIN_REFUSED_IN_JAVA):
            raise login_refused(settings, exc) from exc
        if any(error_name in str(exc) for error_name in UNAVAILABLE_IN_JAVA):
            raise _catalog_away(settings, exc) from exc
        raise


def _catalog_away(settings: Settings, exc: Exception) -> CatalogAway:
    """The error for an unavailable catalog. Its message names the address, the cause and the remedy."""
    # The setting that determines the address: by default, the catalog is a file in the home.
    setting = "MANIFOLD_CATALOG_URI" if settings.catalog_uri.get_secret_value() else "MANIFOLD_HOME"
    address = address_of(settings)
    root_causes = _ROOT_CAUSE.findall(str(exc))
    reason = _on_one_line(root_causes[-1] if root_causes else str(exc))
    return CatalogAway(
        f"the catalog {address} is away or locked ({reason}); see that it runs, that {setting} names it and that no other "
        "program holds its lock, then run this again; "
        f"MANIFOLD_CATALOG_WAIT_SECONDS={settings.catalog_wait_seconds:g} is how long a job waits"
    )


def _log_retry(state: RetryCallState) -> None:
    """Log a failed attempt of `_open_and_ping`, before the next one."""
    settings: Settings = state.args[0]
    error = state.outcome.exception() if state.outcome else None
    log.warning(
        "catalog does not answer; trying again",
        catalog=address_of(settings),
        attempt=state.attempt_number,
        reason=_on_one_line(str(error)),
    )


def _on_one_line(text: str) -> str:
    """The first characters of a text, without line breaks."""
    return " ".join(text.split())[:MAX_REASON_LENGTH]
