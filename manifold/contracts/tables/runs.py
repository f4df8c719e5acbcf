"""Tables about the lake itself: quarantined messages, ingested segments, audit results, operator actions, erasures."""

from enum import StrEnum

from manifold.contracts.tables.table import FEW_MANIFESTS, Table, columns

QUARANTINE = Table(
    "quarantine",
    key=("seq",),
    columns=columns("""
        seq          int64    the refused message's own seq
        received_at  instant  when it came
        stream       string   the stream in whose archive it lies
        topic        string   where it was published
        reason       string   why it was refused
        payload      binary   its bytes, as they came
        digest       string?  of a message that may be delivered twice: what is the same each time
    """),
    meaning="one row for each refused message",
    day_of="received_at",
)

SEGMENTS = Table(
    "ingested_segments",
    key=("path",),
    columns=columns("""
        path             string    the segment, below the archive's root
        stream           string    its stream
        messages         int64     how many messages it held
        first_seq        int64?    its smallest seq
        last_seq         int64?    its greatest seq
        run_id           string    the run that took it in
        ingested_at      instant   when that run began
        refused_because  string?   why the file is not a segment: it is in quarantine; null: it is ingested
        began_at         instant?  when it began, as its path says; by this it is found; null: it does not
    """),
    meaning="one row for each archive segment that is in the lake and was not pruned; makes ingestion exactly-once",
    day_of="began_at",
    properties=FEW_MANIFESTS,
)


class Severity(StrEnum):
    """The severity of a rule in `quality_results`: whether a run that breaks the rule may be published."""

    ERROR = "error"  # the rows would break a guarantee of the table, so the run is not published
    WARNING = "warning"  # the run is published; somebody should look into the cause


class RuleOutcome(StrEnum):
    """The outcome of a rule in `quality_results`: whether the rows of the run keep it."""

    PASSED = "passed"
    BROKEN = "broken"


QUALITY = Table(
    "quality_results",
    key=("run_id", "suite", "rule", "at"),
    columns=columns("""
        run_id      string   the run that was judged
        suite       string   the table whose rules these are
        rule        string   the rule's name
        severity    string   error: a broken rule holds the run back; warning: it does not
        outcome     string   passed or broken
        judged      int64    how many rows of the table the run adds
        unexpected  int64    how many of them break the rule, at least
        sample      string?  a few of these rows, as a JSON array of their keys and what the rule is about
        at          instant  when the run was judged; judged again, it has later rows too
    """),
    meaning="one row for each rule each time that a run is judged",
    day_of="at",
)

ACTIONS = Table(
    "quarantine_actions",
    key=("seq", "at"),
    columns=columns("""
        seq      int64    the refused message
        action   string   replayed or dropped
        at       instant  when
        note     string?  why, as the operator said
        segment  string?  of a replay: the segment that brings the message again
    """),
    meaning="one row for each time that an operator settled a refused message",
    day_of="at",
)

ERASURES = Table(
    "erasures",
    key=("erasure_id", "at"),
    columns=columns("""
        erasure_id       string   one for each time that the command ran; it says nothing about the vehicle
        at               instant  when
        state            string   begun; erased: nothing was found afterwards; left: something was
        why              string   why, as the operator said; it does not name the vehicle
        accepted_before  instant  what was accepted before this instant went
        counts           string   how many rows, entries, messages and segments, as a JSON object
    """),
    meaning="when a vehicle was erased and why, and not which",
    day_of="at",
)
