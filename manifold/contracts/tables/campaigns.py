"""Tables of campaigns: plans, orders, the vehicles that they list, and answers. The state is a fold of these, in no table."""

from manifold.contracts.tables.table import FEW_MANIFESTS, Table, columns

CAMPAIGNS = Table(
    "sdv_campaigns",
    key=("campaign", "seq"),
    columns=columns("""
        campaign     string   the campaign
        seq          int64    seq of the order that brought the plan
        at           instant  when the order was accepted: the time in its seq
        do           string   propose, or amend
        by           string   who ordered it
        data_id      string?  what the plan's vehicles are to get
        plan         string   the plan as canonical JSON
        plan_sha256  string   SHA-256 of plan, lower-case hex
        tzdata       string   version of the time zone data used for the windows
    """),
    meaning="one row for each plan that was proposed, or that was to replace one",
    day_of="at",
    properties=FEW_MANIFESTS,
)

CAMPAIGN_EVENTS = Table(
    "sdv_campaign_events",
    key=("campaign", "seq"),
    columns=columns("""
        campaign    string   the campaign
        seq         int64    the order's seq
        at          instant  when the order was accepted: the time in its seq
        do          string   what it orders: propose, targets, approve, pause and so on
        by          string   a person, or campaigner/<node>
        why         string?  the reason given
        wave        int64?   the wave that it is about, from 0
        rule        string?  the rule that tripped
        counts      string?  the numbers that caused a decision of the campaigner, as canonical JSON
        if_version  int64?   the campaign's version that it was meant for
        epoch       int64    of the campaigner that decided; 0: a person did
        seen        int64    the newest seq that the campaigner knew when it decided; 0: a person decided
        record      binary   the order as it was recorded
    """),
    meaning="one row for each order of people and each decision of the campaigner, with effect or without",
    day_of="at",
    properties=FEW_MANIFESTS,
)

CAMPAIGN_TARGETS = Table(
    "sdv_campaign_targets",
    key=("campaign", "vin", "seq"),
    columns=columns("""
        campaign         string   the campaign
        vin              string   the vehicle
        seq              int64    seq of the order that lists it
        added_at         instant  when the order was accepted: the time in its seq
        zone             string?  the vehicle's time zone, as the list has it
        wave             string?  name of the wave that it is listed for; null: a draw decides
        vin_is_iso_3779  bool?    whether vin is valid by ISO 3779, with its check digit; null: written by an earlier release
    """),
    meaning="one row for each vehicle that an order lists for a campaign",
    day_of="added_at",
    properties=FEW_MANIFESTS,
)

CAMPAIGN_LIST = Table(
    "campaign_list",
    key=("vin",),
    columns=columns("""
        vin   string?  the vehicle
        zone  string?  its time zone
        wave  string?  name of the wave that it is listed for
    """),
    meaning="one row for each vehicle of a list before it is recorded; no table of the lake",
)

CAMPAIGN_ANSWERS = Table(
    "sdv_campaign_answers",
    key=("vin", "seq"),
    columns=columns("""
        vin          string   the vehicle
        seq          int64    the answer's seq
        received_at  instant  when it was accepted: the time in its seq
        campaign     string   the campaign that it answers
        release      int64    the seq of the trigger that it answers, as in sdv_fanout_ids
        status       string   busy, failed, refused or done
        reason       string?  what the vehicle says of it
    """),
    meaning="one row for each answer of a vehicle to a campaign",
    day_of="received_at",
    properties=FEW_MANIFESTS,
)
