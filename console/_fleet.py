"""`manifold fleet`: how many vehicles are here, and where all entries stand."""

import asyncio

from console._census import Fresh, aged, census_of, print_age
from console._output import AsJson, handle_errors, out, print_json, settings_or_fail, table
from contracts.seq import datetime_of
from contracts.settings import Settings
from queues import Census, connect


@handle_errors
def fleet(fresh: Fresh = False, as_json: AsJson = False) -> None:
    """Vehicles by where they are, entries by where they stand: from the last census, which a dispatcher takes by and by."""
    census = asyncio.run(_ask(settings_or_fail(), fresh))
    oldest = datetime_of(census.oldest[0][1]) if census.oldest else None
    if as_json:
        print_json({**aged(census), "oldest_at": oldest})
        return
    rows = [
        ("vehicles known", census.known),
        ("here and listening", census.present),
        ("here and not listening", census.unsubscribed),
        ("away", census.known - census.present - census.unsubscribed),
        ("with something waiting", census.queues),
        ("entries pending", census.pending),
        ("entries in flight", census.in_flight),
        ("entries parked", census.parked),
        ("oldest accepted at", oldest),
    ]
    out.print(table("", ("what", "now"), rows))
    print_age(census)


async def _ask(settings: Settings, fresh: bool) -> Census:
    async with connect(settings.redis) as redis:
        return await census_of(settings, redis, fresh=fresh)
