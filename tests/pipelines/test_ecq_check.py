"""`manifold lake check` on compacted queues: missing and duplicate messages are found, and compacted ones are not missed."""

from datetime import timedelta

import pytest
from pyiceberg.catalog import Catalog

from manifold.archive.store import Archive
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import ECQ_INDEX, ECQ_PAYLOAD, ECQ_STATE
from manifold.lake.catalog import open_catalog
from pipelines.maintenance.check import disagreements
from pipelines.maintenance.repair import forget
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import at, ecq_ack, ecq_expired, ecq_rewind, ecq_write, seq_at
from tests.pipelines.plain import ingest, read
from tests.pipelines.test_check import NOW, double, lose, troubles
from tests.support.lake_rows import append


@pytest.fixture
def whole(lake: Lake) -> Lake:
    """A lake that has all of its archive."""
    lake.renew()
    lake.archive(Stream.ECQ, [ecq_write(1, "c1", "a", b"x"), ecq_write(2, "c1", "b", b"x"), ecq_write(3, "w", "b", b"x")])
    lake.archive(Stream.ECQ, [ecq_write(11, "c1", "a", b"x"), ecq_ack(12, "c1", 2), ecq_ack(13, "c1", 2), ecq_rewind(14, "c1")])
    ingest(open_catalog(lake.settings), lake.settings, run_id="run", now=NOW)
    return lake


def catalog_of(lake: Lake) -> Catalog:
    return open_catalog(lake.settings)


def test_a_lake_that_matches_its_archive_is_left_alone(whole: Lake) -> None:
    assert troubles(whole) == set()


def test_missing_and_duplicate_messages_are_found(whole: Lake) -> None:
    catalog = catalog_of(whole)
    lose(catalog, ECQ_INDEX, seq=seq_at(2))
    lose(catalog, ECQ_STATE, kind="rewound")
    double(catalog, ECQ_PAYLOAD, seq=seq_at(11))
    assert troubles(whole) == {
        ("ecq", "missing", ECQ_INDEX.name, 2, 1),
        ("ecq", "missing", ECQ_STATE.name, 2, 1),
        ("ecq", "doubled", ECQ_PAYLOAD.name, 1, 2),
    }


def test_superseded_settled_and_expired_messages_are_not_missed(whole: Lake) -> None:
    catalog = catalog_of(whole)
    for table in (ECQ_INDEX, ECQ_PAYLOAD):
        lose(catalog, table, seq=seq_at(1))
    assert troubles(whole) == set()
    lose(catalog, ECQ_STATE, kind="rewound")
    assert disagreements(catalog, whole.settings, now=NOW + timedelta(days=2))[0] == []
    for table in (ECQ_INDEX, ECQ_PAYLOAD):
        lose(catalog, table, seq=seq_at(2))
    assert len(disagreements(catalog, whole.settings, now=NOW + timedelta(days=2))[0]) == 2
    assert disagreements(catalog, whole.settings, now=NOW + timedelta(days=whole.settings.ecq_retention_days))[0] == []


def test_an_expired_message_ingested_as_acknowledged_earlier_is_not_missed(lake: Lake) -> None:
    lake.renew()
    lake.archive(Stream.ECQ, [ecq_write(1, "c1", "a"), ecq_expired(2, "c1", 1)])
    catalog = catalog_of(lake)
    ingest(catalog, lake.settings, run_id="run", now=NOW)
    assert troubles(lake) == set()
    lose(catalog, ECQ_STATE, kind="expired")
    assert troubles(lake) == {("ecq", "missing", ECQ_STATE.name, 1, 0)}
    row = {"client_id": "c1", "acked_seq": seq_at(1), "acked_at": at(2), "epoch": 0, "kind": "acknowledged"}
    append(catalog, ECQ_STATE, [row])
    assert troubles(lake) == set()


def test_a_pending_message_is_missed_until_the_shorter_retention_has_passed(whole: Lake) -> None:
    catalog = catalog_of(whole)
    for table in (ECQ_INDEX, ECQ_PAYLOAD):
        lose(catalog, table, seq=seq_at(2))
    for kept_days, troubled in ((3, 0), (5, 2), (0, 2)):
        settings = whole.settings.model_copy(update={"ecq_pending_retention_days": kept_days})
        assert len(disagreements(catalog, settings, now=NOW + timedelta(days=4))[0]) == troubled


def test_a_forgotten_segment_is_ingested_again_once(whole: Lake) -> None:
    catalog = catalog_of(whole)
    before = {table.name: sorted(map(str, read(catalog, table))) for table in (ECQ_INDEX, ECQ_PAYLOAD)}
    lose(catalog, ECQ_PAYLOAD, seq=seq_at(2))
    double(catalog, ECQ_INDEX, seq=seq_at(11))
    forget(catalog, whole.settings, Archive(whole.settings.archive).segments(), now=NOW)
    assert read(catalog, ECQ_INDEX) == read(catalog, ECQ_PAYLOAD) == []
    ingest(catalog, whole.settings, run_id="again", now=NOW)
    assert {table.name: sorted(map(str, read(catalog, table))) for table in (ECQ_INDEX, ECQ_PAYLOAD)} == before
    assert troubles(whole) == set()
