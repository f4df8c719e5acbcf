"""Tables of exclusive compacted queues. `manifold.contracts.ecq_rows` folds the state."""

from enum import StrEnum

from manifold.contracts.tables.table import SMALL_ROW_GROUPS, Table, columns


class StateKind(StrEnum):
    """The kind of a row of `ecq_state`."""

    ACKNOWLEDGED = "acknowledged"  # acked_seq was acknowledged in this epoch
    EXPIRED = "expired"  # acked_seq was skipped, because its retention passed while it was pending; no rewind brings it back
    REWOUND = "rewound"  # acked_seq precedes the first redelivered seq; epoch is the rewind's own seq
    POSITION = "position"  # the position given by rows of this and earlier epochs that compaction has removed


ECQ_PAYLOAD = Table(
    "ecq_payload",
    key=("client_id", "seq"),
    columns=columns("""
        client_id  string   whose queue it is
        key        string   the key; the message with the greatest seq of a key is live
        seq        int64    the message's seq
        ts         instant  when it was accepted: the time in its seq
        payload    binary   the bytes that the client gets
    """),
    meaning="one row for each message; superseded ones go by compaction",
    day_of="ts",
    properties=SMALL_ROW_GROUPS,
)

ECQ_INDEX = Table(
    "ecq_index",
    key=("client_id", "seq"),
    columns=columns("""
        client_id  string   whose queue it is
        seq        int64    the message's seq
        key        string   as in ecq_payload
        ts         instant  as in ecq_payload
        applied    bool     direct enqueue brought it into the queue
    """),
    meaning="one row for each message, without its bytes; superseded ones go by compaction",
    day_of="ts",
)

ECQ_STATE = Table(
    "ecq_state",
    key=("client_id", "acked_seq", "epoch", "kind"),
    columns=columns("""
        client_id  string   whose queue it is
        acked_seq  int64    the message that was acknowledged, or expired; see kind
        acked_at   instant  when it was acknowledged, or expired, or when the rewind came
        epoch      int64    the last rewind that the queue had seen by then, by its seq; 0: none
        kind       string   acknowledged, expired, rewound, or position: what rows come to that compaction has removed
    """),
    meaning="what acknowledgements and rewinds say, in any order and however often; compaction folds them",
)

ECQ_SEQNO = Table(
    "ecq_seqno",
    key=("client_id", "last_seq"),
    columns=columns("""
        client_id  string  whose queue it is
        last_seq   int64   the greatest seq of its messages; readers take the greatest
    """),
    meaning="one row for each client of each run; compaction leaves the greatest",
)
