"""Matching deliveries to publications, also after the tap was killed."""

from pathlib import Path

import pytest

from manifold.sandbox.tap import publication_store
from manifold.sandbox.tap.properties import read_properties
from manifold.sandbox.tap.publication_store import Publication, PublicationStore, Sent
from tests.manifold.sandbox.tap.raw_connection import user_properties

NOW = 1_800_000_000_000
TOPIC = b"agent/V/proxy/request/r1"


def sent(seq: int, *, crc: int = 7, topic: bytes = TOPIC, owner: bytes = b"V", expiry_s: int | None = None) -> Sent:
    raw = user_properties(seq=str(seq)) + (b"" if expiry_s is None else b"\x02" + expiry_s.to_bytes(4))
    return Sent(owner, topic, "sdv-dispatcher-1", read_properties(raw), crc, 5)


def seen(*, crc: int = 7, topic: bytes = TOPIC, client: str = "V", seq: int | None = None) -> Sent:
    props = read_properties(b"" if seq is None else user_properties(seq=str(seq)))
    return Sent(b"V", topic, client, props, crc, 5)


def seq_of(found: Publication | None) -> str | None:
    return found.sent.props["User-Property"]["seq"] if found else None


def remembering(*publishes: Sent, path: Path | None = None) -> PublicationStore:
    store = PublicationStore(path)
    for each in publishes:
        store.remember(each, NOW, persist=True)
    store.flush()
    return store


def test_equal_payloads_on_one_topic_are_matched_in_publishing_order() -> None:
    store = remembering(sent(1), sent(2))

    assert [seq_of(store.match_delivery(seen(), NOW, by_payload=True)) for _ in range(2)] == ["1", "2"]


def test_another_payload_on_the_same_topic_is_not_confused_with_it() -> None:
    store = remembering(sent(1, crc=1), sent(2, crc=2))

    assert seq_of(store.match_delivery(seen(crc=2), NOW, by_payload=True)) == "2"
    assert store.match_delivery(seen(crc=3), NOW, by_payload=True) is None


def test_on_mqtt_5_the_user_properties_decide() -> None:
    store = remembering(sent(1), sent(2))

    assert seq_of(store.match_delivery(seen(seq=2), NOW, by_payload=False)) == "2"


def test_one_message_for_overlapping_filters_is_found_twice() -> None:
    store = remembering(sent(1))

    assert [seq_of(store.match_delivery(seen(seq=1), NOW, by_payload=False)) for _ in range(2)] == ["1", "1"]


def test_expired_publications_are_skipped() -> None:
    store = remembering(sent(1, expiry_s=1), sent(2, expiry_s=60))

    assert seq_of(store.match_delivery(seen(), NOW + 2500, by_payload=True)) == "2"


def test_a_repeated_publish_is_the_same_publication_until_delivered() -> None:
    store = remembering(sent(1))
    first = store.find_undelivered(sent(1))

    store.match_delivery(seen(), NOW, by_payload=True)

    assert first is not None
    assert store.find_undelivered(sent(1)) is None


def test_an_ended_session_takes_its_messages_with_it() -> None:
    store = remembering(sent(1), sent(2, owner=b"W", topic=b"agent/W/proxy/request/r1"))

    store.forget_owner(b"V")

    assert store.match_delivery(seen(), NOW, by_payload=True) is None
    assert len(store) == 1


def test_an_unclosed_store_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "tap" / "publications.jsonl"
    before = remembering(sent(1), sent(2), sent(3), path=path)
    one = before.match_delivery(seen(), NOW, by_payload=True)
    assert one is not None
    before.forget(one)
    before.flush()

    after = PublicationStore(path)

    found = after.match_delivery(seen(), NOW, by_payload=True)
    assert found is not None
    assert (len(after), seq_of(found), found.received_at_ms, found.sent.from_clientid) == (2, "2", NOW, "sdv-dispatcher-1")
    assert after.remember(sent(4), NOW, persist=True).serial > 3


def test_a_torn_last_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "publications.jsonl"
    remembering(sent(1), sent(2), path=path)
    path.write_bytes(path.read_bytes()[:-5])

    assert len(PublicationStore(path)) == 1


def test_the_file_is_rewritten_when_it_has_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication_store, "REWRITE_BYTES", 2000)
    path = tmp_path / "publications.jsonl"
    store = PublicationStore(path)

    for n in range(200):
        store.forget(store.remember(sent(n), NOW, persist=True))
        store.flush()
    store.remember(sent(1000), NOW, persist=True)
    store.flush()

    assert path.stat().st_size < 5000
    assert len(PublicationStore(path)) == 1


def test_the_oldest_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication_store, "MAX_PUBLICATIONS", 2)
    store = remembering(sent(1, crc=1), sent(2, crc=2), sent(3, crc=3))

    assert (len(store), store.forgotten_early) == (2, 1)
    assert store.match_delivery(seen(crc=1), NOW, by_payload=True) is None
