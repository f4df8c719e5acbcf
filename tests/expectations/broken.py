"""Rows that break each rule of each suite, rows at the limit that keep it, and the expected audit results.

Counts are exact, so a row at a limit that one engine counts as broken and another does not is noticed.
"""

from collections.abc import Callable
from datetime import timedelta

from manifold.contracts.seq import EPOCH, datetime_of, first_seq_at
from manifold.contracts.tables import EVERY_TABLE
from tests.expectations import broken_xray as xray
from tests.expectations.rows import (
    NOON,
    SEQ,
    Row,
    answer,
    data,
    ecq_entry,
    ecq_message,
    ecq_seqno,
    ecq_state,
    entry,
    event,
    meta,
    outcome,
    plan,
    refused,
    segment,
    target,
)

MS = timedelta(milliseconds=1)
MINUTE = timedelta(minutes=1)
LATEST = NOON + MINUTE  # the latest time that a clock may show at noon
LATE = NOON + timedelta(hours=1)
NULLS = SEQ + 1000  # the first seq of rows with a missing column
LONG_VIN = "V" * 64
UMLAUTS = "ü" * 256  # 512 bytes of UTF-8


def without_each_column(table: str, row: Callable[[int], Row]) -> list[Row]:
    """A row without each required column of the table; `row(n)` is the n-th complete row."""
    columns = next(t.columns for t in EVERY_TABLE if t.name == table)
    required = [column.name for column in columns if column.required]
    return [row(n) | {column: None} for n, column in enumerate(required)]


def released(seq: int, **changed: object) -> Row:
    place = {"campaign": "maps-47", "wave": 0, "step": 1, "until": datetime_of(seq) + MS}
    release: Row = {"request_id": "maps-47", **place, **changed}
    return entry(seq, **release)


def result(rule: str, **changed: object) -> Row:
    judged = {"run_id": "r", "suite": "s", "rule": rule, "severity": "error", "outcome": "passed", "judged": 2, "unexpected": 0}
    return {**judged, "sample": None, "at": NOON, **changed}


def action(seq: int = SEQ, **changed: object) -> Row:
    return {"seq": seq, "action": "replayed", "at": NOON, "note": None, "segment": "trigger/x.replay.parquet", **changed}


def erasure(erasure_id: str, **changed: object) -> Row:
    return {
        "erasure_id": erasure_id,
        "at": NOON,
        "state": "begun",
        "why": "x",
        "accepted_before": NOON,
        "counts": "{}",
        **changed,
    }


def broken() -> dict[str, list[Row]]:
    """The rows by table; each line breaks one rule, or keeps all where it says so."""
    late, early = first_seq_at(LATE), first_seq_at(EPOCH) - 1
    return {
        "sdv_fanout_data": [
            data(),  # kept
            data("twice"),
            data("twice"),
            data("other-bytes", sha1="00" * 20),
            data("cut", size_bytes=4),
            data("empty", b""),  # kept
            data("later", first_seen_at=LATEST + MS),
            data("latest", first_seen_at=LATEST),  # kept
            data("earlier", first_seen_at=EPOCH - MS),
            data("earliest", first_seen_at=EPOCH),  # kept
            data("nameless"),
            *without_each_column("sdv_fanout_data", lambda n: data(f"null {n}")),
        ],
        "sdv_fanout_meta": [
            meta(),  # kept
            meta("twice"),
            meta("twice"),
            meta("never-stored"),
            meta("cut", last_seen_at=datetime_of(SEQ) - MS),
            meta("other-bytes", times_seen=0),
            meta("later", last_seen_at=LATEST + MS),
            meta("latest", last_seen_at=LATEST),  # kept
            *map(meta, ("empty", "earlier", "earliest")),  # kept
            *without_each_column("sdv_fanout_meta", lambda n: meta(f"null {n}")),
        ],
        "sdv_fanout_ids": [
            entry(),
            entry(),
            entry(SEQ + 2, ts=NOON),
            entry(SEQ + 3, vin="a/b"),  # invalid by ISO 3779, as are the next four
            entry(SEQ + 3, vin="é"),
            entry(SEQ + 3, vin=f"{LONG_VIN}V"),
            entry(SEQ + 3, vin=LONG_VIN),  # too long for a topic level
            entry(SEQ + 4, vin="TEST-1"),  # the same
            entry(SEQ + 3, vin="a b", vin_is_iso_3779=None),  # no topic level; an earlier release did not judge its form
            entry(SEQ + 5, data_id="never-came"),
            entry(late),
            entry(early),
            released(SEQ + 6),  # kept
            released(SEQ + 7, campaign="another"),  # two rules
            released(SEQ + 8, step=None),
            entry(SEQ + 9, wave=0),
            released(SEQ + 10, until=datetime_of(SEQ + 10)),
            *without_each_column("sdv_fanout_ids", lambda n: entry(NULLS + n)),
            *(entry(NULLS + 100 + n) for n in range(9)),  # kept: entries for the outcomes
        ],
        "sdv_fanout_outcomes": [
            outcome(),
            outcome(),
            outcome(SEQ + 2, outcome="lost"),
            outcome(SEQ + 3, vin="a/b", accepted_at=datetime_of(SEQ) - timedelta(days=1)),
            outcome(SEQ + 99),
            outcome(SEQ + 4, vin="TEST-1", ended_at=datetime_of(SEQ) - MINUTE - MS, dispatched_at=None),
            outcome(NULLS + 105, ended_at=datetime_of(SEQ) - MINUTE),  # kept, just
            outcome(NULLS + 106, dispatched_at=datetime_of(SEQ) + MINUTE),  # just kept
            outcome(NULLS + 107, dispatched_at=datetime_of(SEQ) - MINUTE - MS),
            outcome(NULLS + 108, outcome="failed", acknowledged_at=None, attempts=0),  # just kept
            outcome(SEQ + 5, dispatched_at=LATE, attempts=-1, acknowledged_at=None),  # three
            *without_each_column("sdv_fanout_outcomes", lambda n: outcome(NULLS + 100 + n)),
        ],
        "sdv_campaigns": [
            plan(),
            plan(),
            plan(SEQ + 6, at=NOON),
            plan(SEQ + 7, plan_sha256="00" * 32),
            plan(SEQ + 8, do="pause"),
            plan(SEQ + 9, campaign="of-another-name"),
            plan(SEQ + 10, data_id="never-came"),
            plan(SEQ + 11, do="amend", data_id=None),  # kept
            *without_each_column("sdv_campaigns", lambda n: plan(NULLS + n)),
        ],
        "sdv_campaign_events": [
            event(),
            event(),
            event(SEQ + 6, at=NOON),
            event(SEQ + 7, do="launch"),
            event(SEQ + 8, campaign="never-proposed"),
            event(SEQ + 9, seen=SEQ + 9),
            event(SEQ + 10, seen=SEQ + 9),  # kept
            event(late),
            event(early),
            *without_each_column("sdv_campaign_events", lambda n: event(NULLS + n)),
        ],
        "sdv_campaign_targets": [
            target(),
            target(),
            target(SEQ + 6, added_at=NOON),
            target(SEQ + 7, vin="a/b"),  # invalid by ISO 3779, as is the next
            target(SEQ + 8, vin="TEST-1"),
            target(SEQ + 9, campaign="never-proposed"),
            *without_each_column("sdv_campaign_targets", lambda n: target(NULLS + n)),
        ],
        "sdv_campaign_answers": [
            answer(),
            answer(),
            answer(SEQ + 7, received_at=NOON),
            answer(SEQ + 8, status="maybe"),
            answer(SEQ + 9, campaign="never-proposed"),
            answer(SEQ + 10, release=SEQ + 10),
            *without_each_column("sdv_campaign_answers", lambda n: answer(NULLS + n)),
        ],
        "ecq_payload": [
            ecq_message(),  # three rules
            ecq_message(SEQ + 4, client_id="c2"),
            ecq_message(SEQ + 4),
            ecq_message(SEQ + 5, ts=datetime_of(SEQ + 5) + MS),
            ecq_message(SEQ + 6, client_id="a/b"),
            ecq_message(SEQ + 7, client_id="a\nb"),
            ecq_message(SEQ + 8, client_id=""),
            ecq_message(SEQ + 9, client_id=f"{LONG_VIN}V"),
            ecq_message(SEQ + 10, client_id=LONG_VIN),  # kept
            ecq_message(SEQ + 11, key=""),
            ecq_message(SEQ + 12, key=f"{UMLAUTS}k"),
            ecq_message(SEQ + 13, key=UMLAUTS, payload=b""),  # kept
            ecq_message(late),  # kept: that its clock was wrong is said of the index
            ecq_message(early),  # kept: its wrong clock is reported for the index
            *without_each_column("ecq_payload", lambda n: ecq_message(NULLS + n)),
            *(ecq_message(NULLS + 100 + n) for n in range(5)),  # the same
        ],
        "ecq_index": [
            ecq_entry(),  # kept: messages for the index
            ecq_entry(SEQ + 4, client_id="c2"),
            ecq_entry(SEQ + 4),
            ecq_entry(SEQ + 5, ts=datetime_of(SEQ + 5) - MS),
            ecq_entry(SEQ + 6),  # of another client
            ecq_entry(SEQ + 11, key=""),
            ecq_entry(SEQ + 12, key=f"{UMLAUTS}k"),
            ecq_entry(SEQ + 13, key=UMLAUTS, applied=False),  # of another client
            ecq_entry(late),
            ecq_entry(early),
            *without_each_column("ecq_index", lambda n: ecq_entry(NULLS + 100 + n)),
        ],
        "ecq_state": [
            ecq_state(),
            ecq_state(),
            ecq_state(epoch=SEQ),  # kept: acknowledged again, in a later epoch
            ecq_state(kind="Acknowledged"),
            ecq_state(SEQ + 4, epoch=-1),
            ecq_state(-1),
            ecq_state(-1, kind="rewound", epoch=SEQ),  # kept: the one before the first
            ecq_state(-2, kind="rewound", epoch=SEQ),
            ecq_state(SEQ + 5, client_id="nobody"),
            ecq_state(SEQ + 5, client_id="nobody", kind="rewound"),  # kept: the one before the first
            ecq_state(SEQ + 6, acked_at=LATEST + MS),
            ecq_state(SEQ + 7, acked_at=LATEST),  # kept: a client without a queue may rewind
            ecq_state(SEQ + 8, acked_at=EPOCH - MS),
            *without_each_column("ecq_state", lambda n: ecq_state(NULLS + n)),
        ],
        "ecq_seqno": [
            ecq_seqno(),
            ecq_seqno(last_seq=SEQ + 4),
            ecq_seqno("c2", last_seq=-1),
            ecq_seqno("c3", last_seq=0),  # kept
            *without_each_column("ecq_seqno", lambda n: ecq_seqno(f"null {n}")),
        ],
        "quarantine": [
            refused(),
            refused(),
            refused(SEQ + 3, reason=" "),
            refused(SEQ + 4, reason=""),
            refused(SEQ + 5, reason="  \n"),  # kept: no blank
            refused(SEQ + 6, stream="xray"),
            refused(SEQ + 7, received_at=LATEST + MS),
            refused(SEQ + 8, received_at=LATEST),  # kept: not blank
            *without_each_column("quarantine", lambda n: refused(NULLS + n)),
        ],
        "ingested_segments": [
            segment(),
            segment(),
            segment("b", run_id="other"),
            segment("c", last_seq=SEQ - 1),
            segment("d", stream="xray"),
            segment("e", refused_because="torn"),
            segment("f", refused_because="torn", messages=0),
            segment("g", refused_because="torn", messages=0, first_seq=None, last_seq=None),  # kept
            segment("h", first_seq=None),
            segment("i", messages=-1),
            segment("j", messages=0, first_seq=None, last_seq=None),  # kept
            segment("k", last_seq=SEQ),  # kept
            *without_each_column("ingested_segments", lambda n: segment(f"null {n}")),
        ],
        "quality_results": [
            result("twice"),
            result("twice", judged=3),
            result("again", at=NOON - MS),  # kept
            result("again"),  # kept
            result("passed, and rows break it", unexpected=1),
            result("broken by no row", outcome="broken"),
            result("by more rows than there are", outcome="broken", unexpected=3),
            result("by all", outcome="broken", unexpected=2),  # kept
            *without_each_column("quality_results", lambda n: result(f"null {n}")),
        ],
        "quarantine_actions": [
            action(),
            action(note="again"),
            action(at=LATE),  # kept
            action(SEQ + 1, segment=None),
            action(SEQ + 2, action="dropped", segment=None),  # kept
            *without_each_column("quarantine_actions", lambda n: action(NULLS + n)),
        ],
        "erasures": [
            erasure("twice"),
            erasure("twice", state="erased"),
            erasure("ended"),  # kept
            erasure("ended", state="erased", at=LATE),  # kept
            *without_each_column("erasures", lambda n: erasure(f"null {n}")),
        ],
        "xray_raw_signals": [
            *xray.raw_signals(),
            *without_each_column("xray_raw_signals", lambda n: xray.raw(NULLS + n)),
            *(xray.raw(NULLS + 100 + n) for n in range(7)),  # kept: those of processed signals
        ],
        "xray_processed_signals": [
            *xray.processed_signals(),
            *without_each_column("xray_processed_signals", lambda n: xray.processed(NULLS + 100 + n)),
        ],
        "xray_device_status": [
            *xray.devices(),
            *without_each_column("xray_device_status", lambda n: xray.device(NULLS + n)),
        ],
    }


# kept: raw rows for the processed signals
FOUND = {
    ("sdv_fanout_data", "columns_are_present"): ("error", 6),
    ("sdv_fanout_data", "data_id_is_unique"): ("error", 2),
    ("sdv_fanout_data", "data_id_is_known"): ("error", 1),
    ("sdv_fanout_data", "sha1_is_of_payload"): ("error", 1),
    ("sdv_fanout_data", "size_is_of_payload"): ("error", 1),
    ("sdv_fanout_data", "first_seen_at_is_in_range"): ("warning", 2),
    ("sdv_fanout_meta", "columns_are_present"): ("error", 6),
    ("sdv_fanout_meta", "data_id_is_unique"): ("error", 2),
    ("sdv_fanout_meta", "data_id_is_known"): ("error", 1),
    ("sdv_fanout_meta", "last_seen_at_is_not_before_first"): ("error", 1),
    ("sdv_fanout_meta", "times_seen_is_positive"): ("error", 1),
    ("sdv_fanout_meta", "last_seen_at_is_in_range"): ("warning", 1),
    ("sdv_fanout_ids", "columns_are_present"): ("error", 6),
    ("sdv_fanout_ids", "vin_seq_is_unique"): ("error", 2),
    ("sdv_fanout_ids", "ts_is_the_time_of_seq"): ("error", 1),
    ("sdv_fanout_ids", "vin_is_a_topic_level"): ("error", 4),
    ("sdv_fanout_ids", "data_id_is_known"): ("warning", 1),
    ("sdv_fanout_ids", "vin_is_iso_3779"): ("warning", 5),
    ("sdv_fanout_ids", "ts_is_in_range"): ("warning", 2),
    ("sdv_fanout_ids", "campaign_is_whole"): ("error", 3),
    ("sdv_fanout_ids", "campaign_is_known"): ("warning", 1),
    ("sdv_fanout_ids", "until_is_after_ts"): ("warning", 1),
    ("sdv_fanout_outcomes", "columns_are_present"): ("error", 5),
    ("sdv_fanout_outcomes", "vin_seq_outcome_is_unique"): ("error", 2),
    ("sdv_fanout_outcomes", "outcome_is_a_known_word"): ("error", 1),
    ("sdv_fanout_outcomes", "accepted_at_is_the_time_of_seq"): ("error", 1),
    ("sdv_fanout_outcomes", "vin_seq_is_known"): ("warning", 1),
    ("sdv_fanout_outcomes", "ended_at_is_not_before_accepted_at"): ("warning", 1),
    ("sdv_fanout_outcomes", "dispatched_at_lies_between"): ("warning", 2),
    ("sdv_fanout_outcomes", "delivered_is_acknowledged"): ("warning", 1),
    ("sdv_fanout_outcomes", "attempts_is_not_negative"): ("warning", 1),
    ("sdv_campaigns", "columns_are_present"): ("error", 8),
    ("sdv_campaigns", "seq_is_unique"): ("error", 2),
    ("sdv_campaigns", "at_is_the_time_of_seq"): ("error", 1),
    ("sdv_campaigns", "plan_sha256_is_of_plan"): ("error", 1),
    ("sdv_campaigns", "do_brings_a_plan"): ("error", 1),
    ("sdv_campaigns", "plan_names_its_campaign"): ("warning", 1),
    ("sdv_campaigns", "data_id_is_known"): ("warning", 1),
    ("sdv_campaign_events", "columns_are_present"): ("error", 8),
    ("sdv_campaign_events", "seq_is_unique"): ("error", 2),
    ("sdv_campaign_events", "at_is_the_time_of_seq"): ("error", 1),
    ("sdv_campaign_events", "do_is_a_known_word"): ("error", 1),
    ("sdv_campaign_events", "campaign_is_known"): ("warning", 1),
    ("sdv_campaign_events", "seen_is_before_seq"): ("warning", 2),
    ("sdv_campaign_events", "at_is_in_range"): ("warning", 2),
    ("sdv_campaign_targets", "columns_are_present"): ("error", 4),
    ("sdv_campaign_targets", "vin_seq_is_unique"): ("error", 2),
    ("sdv_campaign_targets", "added_at_is_the_time_of_seq"): ("error", 1),
    ("sdv_campaign_targets", "vin_is_a_topic_level"): ("error", 1),
    ("sdv_campaign_targets", "campaign_is_known"): ("warning", 1),
    ("sdv_campaign_targets", "vin_is_iso_3779"): ("warning", 2),
    ("sdv_campaign_answers", "columns_are_present"): ("error", 6),
    ("sdv_campaign_answers", "seq_is_unique"): ("error", 2),
    ("sdv_campaign_answers", "received_at_is_the_time_of_seq"): ("error", 1),
    ("sdv_campaign_answers", "status_is_a_known_word"): ("error", 1),
    ("sdv_campaign_answers", "campaign_is_known"): ("warning", 1),
    ("sdv_campaign_answers", "release_is_before_seq"): ("warning", 1),
    ("ecq_payload", "columns_are_present"): ("error", 5),
    ("ecq_payload", "seq_is_unique"): ("error", 2),
    ("ecq_payload", "ts_is_the_time_of_seq"): ("error", 1),
    ("ecq_payload", "client_id_is_a_topic_level"): ("error", 4),
    ("ecq_payload", "key_fits_a_topic"): ("error", 2),
    ("ecq_index", "columns_are_present"): ("error", 5),
    ("ecq_index", "seq_is_unique"): ("error", 2),
    ("ecq_index", "client_id_seq_is_known"): ("error", 1),
    ("ecq_index", "ts_is_the_time_of_seq"): ("error", 1),
    ("ecq_index", "key_fits_a_topic"): ("error", 2),
    ("ecq_index", "ts_is_in_range"): ("warning", 2),
    ("ecq_state", "columns_are_present"): ("error", 5),
    ("ecq_state", "client_id_acked_seq_epoch_kind_is_unique"): ("error", 2),
    ("ecq_state", "kind_is_a_known_word"): ("error", 1),
    ("ecq_state", "seqs_are_possible"): ("error", 3),
    ("ecq_state", "client_id_is_known"): ("warning", 1),
    ("ecq_state", "acked_at_is_in_range"): ("warning", 2),
    ("ecq_seqno", "columns_are_present"): ("error", 2),
    ("ecq_seqno", "client_id_is_unique"): ("error", 2),
    ("ecq_seqno", "last_seq_is_not_negative"): ("error", 1),
    ("quarantine", "columns_are_present"): ("error", 6),
    ("quarantine", "seq_is_unique"): ("error", 2),
    ("quarantine", "reason_says_something"): ("error", 2),
    ("quarantine", "stream_is_a_known_word"): ("warning", 1),
    ("quarantine", "received_at_is_in_range"): ("warning", 1),
    ("ingested_segments", "columns_are_present"): ("error", 5),
    ("ingested_segments", "path_is_unique"): ("error", 2),
    ("ingested_segments", "run_id_is_of_this_run"): ("error", 1),
    ("ingested_segments", "seqs_are_in_order"): ("error", 3),
    ("ingested_segments", "stream_is_a_known_word"): ("warning", 1),
    ("ingested_segments", "a_refused_file_brought_nothing"): ("error", 2),
    ("quality_results", "columns_are_present"): ("error", 8),
    ("quality_results", "run_id_suite_rule_at_is_unique"): ("error", 2),
    ("quality_results", "counts_fit_the_outcome"): ("error", 3),
    ("quarantine_actions", "columns_are_present"): ("error", 3),
    ("quarantine_actions", "seq_at_is_unique"): ("error", 2),
    ("quarantine_actions", "a_replay_names_its_segment"): ("error", 1),
    ("erasures", "columns_are_present"): ("error", 6),
    ("erasures", "erasure_id_at_is_unique"): ("error", 2),
    **xray.FOUND,
}
