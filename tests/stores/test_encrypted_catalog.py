"""A PostgreSQL catalog behind TLS: the options in its address apply to PyIceberg and to Spark."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from manifold.contracts.tables import NAMESPACE
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.settings import Settings
from tests.stores.identities import Identity, new_identity
from tests.stores.servers import postgresql
from tests.stores.stages import NAMESPACES, Failed, Stages
from tests.support.platforms import variables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def identity() -> Identity:
    return new_identity("the operator's authority")


@pytest.fixture(scope="module")
def encrypted(identity: Identity, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that requires TLS; its address does not say so."""
    with postgresql(tmp_path_factory.mktemp("postgresql") / "pg", identity) as uri:
        yield uri


def address(uri: str, **query: object) -> str:
    return f"{uri}?{'&'.join(f'{name}={value}' for name, value in query.items())}"


def by_pyiceberg(uri: str, home: Path) -> None:
    """Make the tables."""
    ensure_tables(open_catalog(Settings(home=home, catalog_uri=uri)))


def by_spark(uri: str, home: Path, jobs: Stages) -> list[str]:
    """The namespaces that it finds."""
    found: list[str] = jobs.run(NAMESPACES, variables(home=home, catalog_uri=uri))[NAMESPACES]
    return found


def test_both_engines_connect_with_the_right_ca(encrypted: str, identity: Identity, tmp_path: Path, jobs: Stages) -> None:
    authority = identity.write_authority(tmp_path / "ca.pem")
    uri = address(encrypted, sslmode="verify-full", sslrootcert=authority)
    by_pyiceberg(uri, tmp_path)
    assert NAMESPACE in by_spark(uri, tmp_path, jobs)


def test_both_engines_refuse_a_server_with_another_ca(encrypted: str, tmp_path: Path, jobs: Stages) -> None:
    authority = new_identity("somebody else's authority").write_authority(tmp_path / "ca.pem")
    uri = address(encrypted, sslmode="verify-full", sslrootcert=authority)
    with pytest.raises(OperationalError, match="certificate verify failed"):
        by_pyiceberg(uri, tmp_path)
    with pytest.raises(Failed, match="CatalogAway"):
        by_spark(uri, tmp_path, jobs)


def test_both_engines_are_refused_without_tls(encrypted: str, tmp_path: Path, jobs: Stages) -> None:
    uri = address(encrypted, sslmode="disable")
    with pytest.raises(OperationalError, match="no encryption"):
        by_pyiceberg(uri, tmp_path)
    with pytest.raises(Failed, match="CatalogAway"):
        by_spark(uri, tmp_path, jobs)
