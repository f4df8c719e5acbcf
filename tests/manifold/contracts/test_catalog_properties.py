"""Catalog properties: one flat setting from the environment or the file; errors do not show values."""

from pathlib import Path

import pytest

from manifold.contracts.errors import SettingsError
from manifold.settings import FILE_VARIABLE, Settings, load_settings

VARIABLE = "MANIFOLD_CATALOG_PROPERTIES"


def test_in_the_environment_they_are_a_json_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, '{"credential": "me:s3cret", "rest.sigv4-enabled": true, "rest-page-size": 100}')

    settings = load_settings()

    assert settings.catalog_options == {"credential": "me:s3cret", "rest.sigv4-enabled": "true", "rest-page-size": "100"}
    assert "s3cret" not in repr(settings)


def test_in_the_file_they_are_a_table_and_dotted_keys_nest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "manifold.toml"
    file.write_text('[catalog_properties]\ntoken = "t"\nrest.sigv4-enabled = true\n"header.X-Site" = "a"\n')
    monkeypatch.setenv(FILE_VARIABLE, str(file))

    assert load_settings().catalog_options == {"token": "t", "rest.sigv4-enabled": "true", "header.X-Site": "a"}


def test_they_extend_the_properties_that_the_store_needs() -> None:
    more = {"warehouse": "s3://lake/w", "s3_access_key": "key", "s3_secret_key": "secret", "s3_region": "eu-west-1"}
    options = Settings(**more, catalog_properties='{"s3.region": "eu-north-1", "token": "t"}').catalog_options  # type: ignore[arg-type]

    assert (options["s3.region"], options["client.region"], options["token"]) == ("eu-north-1", "eu-west-1", "t")
    assert options["s3.access-key-id"] == "key"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        pytest.param("s3cret", "must be a JSON object", id="not JSON"),
        pytest.param('["s3cret"]', "must be a JSON object", id="not an object"),
        pytest.param('{"token": ["s3cret"]}', "token is none", id="not text"),
        pytest.param(
            '{"warehouse": "s3cret"}', "must not have warehouse, which is the setting warehouse", id="a setting of another name"
        ),
        pytest.param('{"uri": "s3cret"}', "must not have uri, which is the setting catalog_uri", id="two errors"),
    ],
)
def test_an_invalid_property_is_named_without_its_value(value: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)

    with pytest.raises(SettingsError, match=rf"{VARIABLE}=\*\*\*: .*{why}") as wrong:
        load_settings()
    assert "s3cret" not in str(wrong.value)


def test_a_warehouse_known_only_to_a_rest_catalog_is_in_object_storage() -> None:
    named = Settings(catalog_type="rest", warehouse="fleet", s3_endpoint="http://s3.example")
    assert (named.warehouse_url, named.lake_on_s3) == ("fleet", True)
    assert named.catalog_options["s3.endpoint"] == "http://s3.example"
    assert Settings(catalog_type="rest").warehouse_url == ""
    on_disk = Settings(catalog_type="rest", warehouse="file:///lake")
    assert (on_disk.warehouse_url, on_disk.lake_on_s3) == ("file:///lake", False)
    assert Settings().lake_on_s3 is False
