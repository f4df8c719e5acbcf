"""Datasets have OpenLineage names without logins."""

import pytest

from manifold.settings import load_settings
from pipelines.lineage.datasets import dataset, place


@pytest.mark.parametrize(
    ("url", "namespace", "name"),
    [
        ("/srv/archive/data", "file", "/srv/archive/data"),
        ("file:///srv/lake/sdv/ids", "file", "/srv/lake/sdv/ids"),
        ("s3://bucket/lake/sdv/ids", "s3://bucket", "lake/sdv/ids"),
        ("s3://bucket/lake/sdv/ids/", "s3://bucket", "lake/sdv/ids"),
    ],
)
def test_a_location_is_named_by_store_and_path(url: str, namespace: str, name: str) -> None:
    assert dataset(url) == {"namespace": namespace, "name": name, "facets": {}}


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster"])
def test_queues_are_named_by_their_redis_without_the_login(scheme: str) -> None:
    settings = load_settings(redis_url=f"{scheme}://user:secret@redis.example:6380")
    assert place(settings, "queues") == {"namespace": "redis://redis.example:6380", "name": "queues", "facets": {}}


def test_archive_and_keys_are_located_by_the_settings() -> None:
    settings = load_settings(archive_url="s3://bucket/archive", s3_access_key="a", s3_secret_key="b")
    named = [place(settings, "archive"), place(settings, "keys")]
    assert [(each["namespace"], each["name"]) for each in named] == [
        ("s3://bucket", "archive"),
        ("s3://bucket", "archive/keys"),
    ]
