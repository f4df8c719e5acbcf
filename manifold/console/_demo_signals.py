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
OUTCOME_WAIT_S = 120.0
POLL_S = 0.1
MAX_DEAD_LETTERS = 10_000  # dead letters that are searched; some may be of earlier runs
FINAL_OUTCOMES = ("processed", "duplicate", "refused")


@dataclass(slots=True)
class SentSignals:
    """The messages sent, and their outcomes at the door and in the lake."""

    sent: list[SignalMessage]
    began: datetime
    handled: int  # messages that have a final outcome at the door
    seconds: float  # until all messages were handled, or the wait for them ended
    codes: dict[str, str]  # the codes of the dead letters, by correlation id
    # The number of rows in each table: by device, instant and digest, and in quarantine by code.
    raw: Counter[tuple[str, datetime, str]] = field(default_factory=Counter)
    processed: Counter[tuple[str, datetime, str]] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)

    def of(self, *kinds: Kind) -> list[SignalMessage]:
        """Return the messages of these kinds."""
        return [message for message in self.sent if message.kind in kinds]

    @property
    def good_exactly_once(self) -> int:
        """The number of valid signals that are in the lake exactly once, both raw and processed."""
        keys = [message.row for message in self.of(Kind.GOOD) if message.row]
        return sum(self.raw[key] == self.processed[key] == 1 for key in keys)

    @property
    def refused_with_code(self) -> int:
        """The number of invalid messages that are dead letters with the expected code."""
        invalid = [message for message in self.sent if message.code]
        return sum(self.codes.get(message.correlation_id) == message.code for message in invalid)

    @property
    def is_quarantine_complete(self) -> bool:
        """Whether quarantine has as many rows of each code as messages with this code were sent."""
        return self.quarantined == Counter(message.code for message in self.sent if message.code)

    def summary_rows(self) -> list[tuple[object, ...]]:
        """Return a row for each kind of message: kind, number sent, outcome at the door, rows in the lake."""
        rows: list[tuple[object, ...]] = []
        for kind in Kind:
            messages = self.of(kind)
            if messages:
                rows.append((kind.value, len(messages), *self._describe_outcome(kind, messages)))
        return rows

    def _describe_outcome(self, kind: Kind, messages: list[SignalMessage]) -> tuple[str, str]:
        """The outcome of the messages of one kind at the door, and in the lake."""
        code = messages[0].code  # the same for all messages of a kind
        if code is not None:
            refused = sum(self.codes.get(message.correlation_id) == code for message in messages)
            return f"{refused} refused: {code}", f"{self.quarantined[code]} rows in quarantine"
        keys = {message.row for message in messages if message.row}
        rows = sum(self.raw[key] for key in keys)
        if kind in DUPLICATES:
            return "duplicates", f"{rows} rows of the {len(keys)} signals that they repeat"
        return "processed", f"{rows} rows"


def has_a_door(settings: Settings) -> bool:
    """Whether the platform accepts signed signals; the door may be off, or RabbitMQ not installed."""
    return any(program.kind == "signals" for program in programs(settings)) and bool(hmac_secrets(settings))


async def send_signals(settings: Settings, run: str) -> SentSignals:
    """Publish the fleet's messages, and wait until the door has a final outcome for each, at most `OUTCOME_WAIT_S`.

    `run` is the name of the demo's run, a number, which also seeds the messages.
    """
    instant = datetime.now(UTC)
    handled_before = await asyncio.to_thread(_count_handled, settings)
    mix = SignalMix(int(run), DEVICES, hmac_secrets(settings)[0], prefix=f"gateway-{run}")
    sent = list(mix.messages(MESSAGES, instant))
    began = time.monotonic()
    await publish(settings, sent, seed=int(run))
    handled = 0
    while handled < len(sent) and time.monotonic() < began + OUTCOME_WAIT_S:
        await asyncio.sleep(POLL_S)
        handled = await asyncio.to_thread(_count_handled, settings) - handled_before
    seconds = time.monotonic() - began
    async with open_dead_letters(settings) as queue:
        dead_letters = await queue.take_oldest(MAX_DEAD_LETTERS)
    sent_ids = {message.correlation_id for message in sent}
    codes: dict[str, str] = {}
    for letter in dead_letters:
        correlation_id = str(letter.message.headers.get("x-correlation-id"))
        if correlation_id in sent_ids:
            codes[correlation_id] = letter.code
    return SentSignals(sent, instant, handled, seconds, codes)


def count_in_lake(settings: Settings, signals: SentSignals) -> None:
    """Count the rows of these signals in the lake, and set `raw`, `processed` and `quarantined` of `signals`."""
    catalog = open_catalog(settings)
    signals.raw = _count_by_key(catalog, XRAY_RAW, signals.began)
    signals.processed = _count_by_key(catalog, XRAY_PROCESSED, signals.began)
    quarantined = _rows_since(catalog, QUARANTINE, signals.began, ("stream", "reason"))
    # A reason is `CODE: explanation`.
    codes = [row["reason"].partition(":")[0] for row in quarantined if row["stream"] == Stream.XRAY_RAW.value]
    signals.quarantined = Counter(code for code in codes if code in tuple(Code))


def _count_by_key(catalog: Catalog, table: Table, since: datetime) -> Counter[tuple[str, datetime, str]]:
    rows = _rows_since(catalog, table, since, table.key)
    return Counter((row["device_id"], row["captured_at"], row["content_digest"]) for row in rows)


def _rows_since(catalog: Catalog, table: Table, since: datetime, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """These columns of the table's rows whose messages were accepted at or after `since`, by their seq."""
    try:
        loaded = catalog.load_table(table.identifier)
    except NoSuchTableError:  # no signal was ever ingested
        return []
    row_filter = where(GreaterThanOrEqual, "seq", first_seq_at(since))
    rows: list[dict[str, Any]] = loaded.scan(row_filter, columns).to_arrow().to_pylist()
    return rows


def _count_handled(settings: Settings) -> int:
    """Return the number of messages with a final outcome since the door started, from its metrics."""
    page = httpx.get(
        f"{settings.signals}/metrics", headers=settings.bearer, trust_env=False, verify=verified(settings, settings.signals)
    ).text
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    counters = (sample for sample in samples if sample.name == "signals_messages_total")
    return sum(int(counter.value) for counter in counters if counter.labels["outcome"] in FINAL_OUTCOMES)
