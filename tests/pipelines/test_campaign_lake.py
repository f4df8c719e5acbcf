"""Facts of a campaign from rows that no record of a message has brought, or that belong to others."""

from manifold.campaigns.facts import Answered, Ended, Ending, Released
from manifold.campaigns.lake import read_campaign
from manifold.contracts.answers import Answer
from manifold.contracts.seq import seq_of
from manifold.contracts.tables import CAMPAIGN_ANSWERS, IDS, OUTCOMES
from manifold.lake.catalog import open_catalog
from manifold.lake.commits import append_rows
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import NOON_MS, at, seq_at
from tests.pipelines.plain import rows_of

NAME = "maps-47"


def test_facts_are_those_of_the_campaigns_own_releases(lake: Lake) -> None:
    lake.renew()
    catalog = open_catalog(lake.settings)
    entry = {"data_id": "d1", "applied": True, "ts": at(1), "wave": 0, "step": 1}
    mine = {"seq": seq_at(1), "request_id": NAME, "campaign": NAME, "until": at(9)}
    others = {"seq": seq_at(1, node=1), "request_id": "other", "campaign": "other"}
    append_rows(catalog, IDS, rows_of(IDS, [entry | of | {"vin": vin} for of in (mine, others) for vin in ("V2", "V1")]), {})
    end = {"vin": "V1", "outcome": "expired", "accepted_at": at(1), "ended_at": at(7)}
    append_rows(catalog, OUTCOMES, rows_of(OUTCOMES, [end | {"seq": of["seq"]} for of in (mine, others)]), {})
    answer = {"received_at": at(5), "campaign": NAME, "status": "busy", "vin": "V2"}
    releases = (seq_at(1), seq_at(1, node=1), 7)
    answers = [answer | {"seq": seq_at(5) + place, "release": release} for place, release in enumerate(releases)]
    append_rows(catalog, CAMPAIGN_ANSWERS, rows_of(CAMPAIGN_ANSWERS, answers), {})

    found = read_campaign(catalog, NAME)

    assert found.facts == (
        Released(seq_at(1), 0, 1, ("V1", "V2"), NOON_MS + 9),
        Answered(seq_at(5), "V2", seq_at(1), Answer.BUSY),
        Ended(seq_of(NOON_MS + 7, 0, 0), "V1", seq_at(1), Ending.EXPIRED),
    )
    assert found.sent == ()
