"""The demo's signals: messages from a gateway fleet, valid and invalid, and the outcome of each kind in door and lake."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import GreaterThanOrEqual

from manifold.contracts.envelope import Stream
from manifold.contracts.seq import first_seq_at
from manifold.contracts.signals.codes import Code
from manifold.contracts.tables import QUARANTINE, XRAY_PROCESSED, XRAY_RAW, Table
from manifold.lake.catalog import open_catalog, where
from manifold.messaging.amqp import hmac_secrets
from manifold.runtime.tls import verified
from manifold.sandbox.fleet.gateways import DUPLICATES, Kind, SignalMessage, SignalMix, publish
from manifold.sandbox.platform.programs import programs
from manifold.settings import Settings
from manifold.signals.dead_letters import open_dead_letters

DEVICES, MESSAGES = 20, 500
SETTLED_WAIT_S = 120.0
LOOK_S = 0.1
MAX_DEAD = 10_000  # dead letters searched, which may include those of earlier runs
ENDS = ("processed", "duplicate", "refused")  # final outcomes of a message


@dataclass(slots=True)
class Kinds:
    """The messages sent, and their outcomes. Row keys are device, instant and digest."""

    sent: list[SignalMessage]
    began: datetime
    settled: int  # messages with a final outcome
    seconds: float
    codes: dict[str, str]  # of dead letters, by correlation id
    raw: Counter[tuple[str, datetime, str]] = field(default_factory=Counter)  # lake rows
    processed: Counter[tuple[str, datetime, str]] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)  # by code

    def of(self, *kinds: Kind) -> list[SignalMessage]:
        """Return the messages of these kinds."""
        return [message for message in self.sent if message.kind in kinds]

    @property
    def good(self) -> int:
        """Number of valid signals that are in the lake exactly once, raw and processed."""
        return sum(self.raw[m.row] == self.processed[m.row] == 1 for m in self.of(Kind.GOOD) if m.row)

    @property
    def refused(self) -> int:
        """Number of invalid messages that are dead letters with the expected code."""
        return sum(self.codes.get(m.correlation_id) == m.code for m in self.sent if m.code)

    @property
    def in_quarantine(self) -> bool:
        """Whether the lake has each refused message exactly once, by code."""
        return self.quarantined == Counter(message.code for message in self.sent if message.code)

    def rows(self) -> list[tuple[object, ...]]:
        """Return a table row for each kind: number sent, outcome at the door, rows in the lake."""
        return [(kind.value, len(of), *self._compare(kind, of)) for kind in Kind if (of := self.of(kind))]

    def _compare(self, kind: Kind, of: list[SignalMessage]) -> tuple[str, str]:
        if (code := of[0].code) is not None:
            lie = sum(self.codes.get(message.correlation_id) == code for message in of)
            return f"{lie} refused: {code}", f"{self.quarantined[code]} rows in quarantine"
        signals = {message.row for message in of if message.row}
        rows = sum(self.raw[key] for key in signals)
        if kind in DUPLICATES:
            return "duplicates", f"{rows} rows of the {len(signals)} signals that they repeat"
        return "processed", f"{rows} rows"


def has_a_door(settings: Settings) -> bool:
    """Whether the platform accepts signed signals; the door may be off, or RabbitMQ not installed."""
    return any(program.kind == "signals" for program in programs(settings)) and bool(hmac_secrets(settings))


async def send_signals(settings: Settings, run: str) -> Kinds:
    """Publish the fleet's messages, and wait until the door has settled all of them."""
    at, before = datetime.now(UTC), await asyncio.to_thread(_ended, settings)
    mix = SignalMix(int(run), DEVICES, hmac_secrets(settings)[0], prefix=f"gateway-{run}")
    sent, began = list(mix.messages(MESSAGES, at)), time.monotonic()
    await publish(settings, sent, seed=int(run))
    settled = 0
    while settled < len(sent) and time.monotonic() < began + SETTLED_WAIT_S:
        await asyncio.sleep(LOOK_S)
        settled = await asyncio.to_thread(_ended, settings) - before
    seconds = time.monotonic() - began
    async with open_dead_letters(settings) as letters:
        dead = await letters.take_oldest(MAX_DEAD)
    ids, codes = {message.correlation_id for message in sent}, dict[str, str]()
    for letter in dead:
        correlation_id = str(letter.message.headers.get("x-correlation-id"))
        if correlation_id in ids:
            codes[correlation_id] = letter.code
    return Kinds(sent, at, settled, seconds, codes)


def find_in_lake(settings: Settings, kinds: Kinds) -> None:
    """Read the rows of these signals from the lake."""
    catalog = open_catalog(settings)
    kinds.raw, kinds.processed = _keys(catalog, XRAY_RAW, kinds.began), _keys(catalog, XRAY_PROCESSED, kinds.began)
    kept = _rows_since(catalog, QUARANTINE, kinds.began, ("stream", "reason"))
    codes = [row["reason"].partition(":")[0] for row in kept if row["stream"] == Stream.XRAY_RAW.value]
    kinds.quarantined = Counter(code for code in codes if code in tuple(Code))


def _keys(catalog: Catalog, table: Table, since: datetime) -> Counter[tuple[str, datetime, str]]:
    rows = _rows_since(catalog, table, since, table.key)
    return Counter((row["device_id"], row["captured_at"], row["content_digest"]) for row in rows)


def _rows_since(catalog: Catalog, table: Table, since: datetime, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    try:
        loaded = catalog.load_table(table.identifier)
    except NoSuchTableError:  # no signal was ever ingested
        return []
    found: list[dict[str, Any]] = (
        loaded.scan(where(GreaterThanOrEqual, "seq", first_seq_at(since)), columns).to_arrow().to_pylist()
    )
    return found


def _ended(settings: Settings) -> int:
    """Return the number of messages with a final outcome, from the door's metrics."""
    page = httpx.get(
        f"{settings.signals}/metrics", headers=settings.bearer, trust_env=False, verify=verified(settings, settings.signals)
    ).text
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    return sum(int(s.value) for s in samples if s.name == "signals_messages_total" and s.labels["outcome"] in ENDS)
