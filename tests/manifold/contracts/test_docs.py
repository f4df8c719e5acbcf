"""docs/reference/messages.md and docs/reference/redis.md say what the code says."""

import re

import pytest

from manifold.contracts import keys, topics
from manifold.contracts.answers import MAX_ANSWER_BYTES, MAX_REASON
from manifold.contracts.ecq import MAX_KEY_BYTES, MAX_KEY_LEVELS
from manifold.contracts.envelope import DUPLICATE_OF, INLINE, SEGMENT_SCHEMA, Stream
from manifold.contracts.messages import MAX_PARTS, ReceiptStatus
from manifold.contracts.names import MAX_ID, MAX_VIN
from manifold.contracts.outcomes import CODES, EntryState, Outcome
from manifold.recorder._answers import IN_FLIGHT
from manifold.recorder._rate_limit import BURST, MAX_KEPT_BYTES
from manifold.recorder._receipts import MAX_BYTES, MAX_LEVELS
from manifold.settings import Settings
from tests.support.servers import ROOT

MESSAGES = (ROOT / "docs" / "reference" / "messages.md").read_text()
REDIS = (ROOT / "docs" / "reference" / "redis.md").read_text()
DEFAULT = Settings.model_construct()


def test_the_page_has_every_redis_key() -> None:
    owner = [key.replace("V}", "owner}") for key in {*keys.owner_keys("V"), *keys.ecq_keys("V")}]
    others = [keys.trigger(0), keys.data("x"), keys.waiting_for("x"), keys.dedupe("x"), keys.wake(0), keys.deadlines(0)]
    others += [keys.releases("x"), *keys.watermark_keys(0, of_cluster=False), keys.recorders(0)]
    alone = [keys.OUTCOMES, keys.LOADED, keys.REBUILT_UP_TO, keys.PARKED, keys.QUEUE_STATS, keys.QUEUE_STATS_LEASE]
    alone += [keys.BRAKES, keys.BRAKES_VERSION, keys.WINDOWS]
    shapes = owner + [key.rpartition(":")[0] + ":<" for key in others] + alone

    assert [shape for shape in shapes if f"| `{shape}" not in REDIS] == []


def test_the_page_says_which_number_stands_for_which_outcome() -> None:
    assert ", ".join(f"{code} {outcome.value}" for outcome, code in CODES.items()) in REDIS


def test_the_page_lists_archive_columns_streams_and_state_names() -> None:
    words = [*SEGMENT_SCHEMA.names, *Stream, *Outcome, *EntryState, *ReceiptStatus, *topics.BrokerEvent, DUPLICATE_OF, INLINE]

    assert [word for word in words if not re.search(rf"`{word}`", MESSAGES)] == []


def test_the_page_has_every_topic() -> None:
    made = [
        topics.data_topic("<data_id>"),
        *topics.TRIGGER_TOPICS,
        topics.ecq_write_topic("<client id>", "<key>"),
        topics.ecq_rewind_topic("<client id>"),
        topics.request_topic(DEFAULT.topic_prefix, "<VIN>", "<request_id>"),
        topics.response_topic(DEFAULT.topic_prefix, "<VIN>", "<campaign>"),
        topics.ecq_topic("<client id>", "<key>"),
        *(topics.sign_topic("<VIN>", sign) for sign in topics.Sign),
    ]

    assert [topic for topic in made if f"`{topic}`" not in MESSAGES] == []


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("max_data_bytes", f"{DEFAULT.max_data_bytes >> 20} MiB"),
        ("max_trigger_bytes", f"{DEFAULT.max_trigger_bytes >> 20} MiB"),
        ("max_ids", f"{DEFAULT.max_ids:,}"),
        ("dedupe_window_seconds", f"{DEFAULT.dedupe_window_seconds:g} s"),
        ("ecq_rewinds_per_hour", f"{DEFAULT.ecq_rewinds_per_hour} an hour, up to {BURST} at once"),
        ("campaign_answers_per_hour", f"{DEFAULT.campaign_answers_per_hour} an hour, up to {BURST} at once"),
    ],
)
def test_the_page_has_the_default_of_each_limit(setting: str, shown: str) -> None:
    assert f"| {shown} | `{setting}` |" in MESSAGES


def test_the_page_has_the_limits_that_no_setting_changes() -> None:
    assert f"| {MAX_KEY_BYTES} bytes of UTF-8, {MAX_KEY_LEVELS} levels" in MESSAGES
    assert f"| answer | {MAX_ANSWER_BYTES:,} bytes |" in MESSAGES
    assert f"Its first {MAX_REASON} characters are read" in MESSAGES
    assert f"and {MAX_KEPT_BYTES >> 10} KiB of it is kept" in MESSAGES
    assert f"on which {IN_FLIGHT} may be unacknowledged" in MESSAGES
    assert f"1 to {MAX_LEVELS} levels after it, at most {MAX_BYTES} bytes" in MESSAGES
    assert f"at most {MAX_PARTS} lists and objects" in MESSAGES
    assert f"1 to {MAX_VIN} printable" in MESSAGES
    assert re.search(rf"up to\s{MAX_ID} of them", MESSAGES)
