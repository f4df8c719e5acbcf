"""Tables of fanout queues: payloads, entries of triggers, and their outcomes."""

from manifold.contracts.tables.table import SMALL_ROW_GROUPS, Table, columns

DATA = Table(
    "sdv_fanout_data",
    key=("data_id",),
    columns=columns("""
        data_id        string   the name by which triggers refer to the payload
        payload        binary   the bytes that vehicles get
        sha1           string   SHA-1 of the payload, lower-case hex
        size_bytes     int64    length of the payload
        seq            int64    seq of the message that brought it first
        first_seen_at  instant  when that message was received
    """),
    meaning="one row for each payload; written once",
    day_of="first_seen_at",
    properties=SMALL_ROW_GROUPS,
)

META = Table(
    "sdv_fanout_meta",
    key=("data_id",),
    columns=columns("""
        data_id        string   as in sdv_fanout_data
        first_seen_at  instant  when the data was first published
        last_seen_at   instant  when the data was last published
        times_seen     int64    how often the data was published
        sha1           string   SHA-1 of the payload, as in sdv_fanout_data
        stored_at      instant  first_seen_at of the payload's row in sdv_fanout_data: where to find it
    """),
    meaning=(
        "one row for each payload that a run saw, and where it is stored; readers and compaction fold the rows of a data_id into "
        "one (earliest, latest, sum)"
    ),
    properties=SMALL_ROW_GROUPS,
)

IDS = Table(
    "sdv_fanout_ids",
    key=("vin", "ts", "request_id", "seq"),
    columns=columns("""
        vin              string    the vehicle
        ts               instant   when the trigger was accepted: the time in its seq
        request_id       string    the trigger's request_id
        seq              int64     the trigger's seq
        data_id          string    what the vehicle is to get
        applied          bool      direct enqueue brought it into the queues
        campaign         string?   the campaign that released it; null: none did
        wave             int64?    the campaign's wave, from 0
        step             int64?    counts the campaign's releases, from 1
        until            instant?  end of the vehicle's time window: it is not sent from then on
        vin_is_iso_3779  bool?     whether vin is valid by ISO 3779, with its check digit; null: written before 0.1.0
    """),
    meaning="one row for each VIN of each accepted trigger",
    day_of="ts",
)

OUTCOMES = Table(
    "sdv_fanout_outcomes",
    key=("vin", "seq", "outcome"),
    columns=columns("""
        vin              string    the vehicle
        seq              int64     the trigger's seq
        outcome          string    how the entry ended: delivered, superseded, expired, cancelled, failed or withdrawn
        accepted_at      instant   when the trigger was accepted: the time in its seq, as `ts` in sdv_fanout_ids
        dispatched_at    instant?  when it was last published to the vehicle
        acknowledged_at  instant?  when the vehicle's acknowledgement was seen
        ended_at         instant   when the entry ended
        attempts         int32?    how often it was published
        reason           string?   what the vehicle said, or why the platform ended it
        recorded_seq     int64?    seq of the record that says so; null: the platform ended it in the lake
    """),
    meaning="one row for each entry that ended; a second if it was delivered after it had been withdrawn",
    day_of="accepted_at",
)
