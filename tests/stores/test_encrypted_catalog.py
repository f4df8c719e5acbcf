"""A PostgreSQL catalog behind TLS: the options in its address apply to PyIceberg and to Spark."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from manifold.contracts.tables import NAMESPACE
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.settings import Settings
from pipelines.catalog import CatalogAway
from tests.stores.identities import Identity, new_identity
from tests.stores.own_jvm import Namespaces, namespaces
from tests.stores.servers import postgresql

__all__ = ["namespaces"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def identity() -> Identity:
    return new_identity("the operator's authority")


@pytest.fixture(scope="module")
def encrypted(identity: Identity, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that requires TLS; its address does not say so."""
    with postgresql(tmp_path_factory.mktemp("postgresql") / "pg", identity) as uri:
        yield uri


def settings_of(uri: str, home: Path, **query: object) -> Settings:
    said = "&".join(f"{name}={value}" for name, value in query.items())
    return Settings(home=home, catalog_uri=f"{uri}?{said}")


def test_both_engines_connect_with_the_right_ca(
    encrypted: str, identity: Identity, tmp_path: Path, namespaces: Namespaces
) -> None:
    authority = identity.write_authority(tmp_path / "ca.pem")
    settings = settings_of(encrypted, tmp_path, sslmode="verify-full", sslrootcert=authority)
    ensure_tables(open_catalog(settings))
    assert NAMESPACE in namespaces(settings)


def test_both_engines_refuse_a_server_with_another_ca(encrypted: str, tmp_path: Path, namespaces: Namespaces) -> None:
    authority = new_identity("somebody else's authority").write_authority(tmp_path / "ca.pem")
    settings = settings_of(encrypted, tmp_path, sslmode="verify-full", sslrootcert=authority)
    with pytest.raises(OperationalError, match="certificate verify failed"):
        open_catalog(settings)
    with pytest.raises(CatalogAway):
        namespaces(settings)


def test_both_engines_are_refused_without_tls(encrypted: str, tmp_path: Path, namespaces: Namespaces) -> None:
    settings = settings_of(encrypted, tmp_path, sslmode="disable")
    with pytest.raises(OperationalError, match="no encryption"):
        open_catalog(settings)
    with pytest.raises(CatalogAway):
        namespaces(settings)
