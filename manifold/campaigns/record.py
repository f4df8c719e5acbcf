"""Reads the facts of campaigns from the record: the archive, and what the recorders have in their journals.

The journals are read before the archive, so that no fact is missed that moves from one to the other meanwhile. A fact may be
read twice, or after later ones: the fold is indifferent to both.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from http.client import HTTPException
from itertools import chain, islice
from time import monotonic
from urllib.error import URLError
from urllib.request import Request, urlopen

import msgspec

from manifold.archive.recorded import RecordedSegments
from manifold.archive.store import Archive
from manifold.archive.tail import Page, decode_page, may_be_fact
from manifold.campaigns import wire
from manifold.campaigns.beginnings import beginnings
from manifold.campaigns.decided import OVER
from manifold.campaigns.facts import Answered, Ended, Fact, Recorded
from manifold.campaigns.fold import Campaign, fold
from manifold.contracts.answers import parse_answer
from manifold.contracts.campaigns import Command, Propose, decode
from manifold.contracts.envelope import Stream
from manifold.contracts.errors import Retryable
from manifold.contracts.messages import Refused
from manifold.contracts.outcomes import OutcomeRecord
from manifold.contracts.seq import MAX_SEQ, node_of
from manifold.runtime.tls import web_context
from manifold.settings import Settings

WAIT_S = 10.0
BATCH = 50_000  # messages
Facts = dict[str, list[Fact]]  # by campaign
ABOUT_ENTRIES = (Stream.OUTCOME, Stream.ANSWER)  # facts about the entries of a trigger
Message = tuple[int, str, str, bytes]  # seq, stream, topic, payload
_Gap = tuple[int, int | None]  # from a seq on; of one recorder, or of all


class CampaignRecord:
    """Follows the record. Every method blocks: call it in a thread.

    With `names`, only these campaigns are read; otherwise all but those that were over when `read` was called first, by an order
    before the seq `over_since`.
    """

    def __init__(self, settings: Settings, names: Collection[str] = (), *, over_since: int = MAX_SEQ) -> None:
        self.clock_ms: dict[str, tuple[int, float]] = {}  # recorder → its clock, and when it was read (monotonic seconds)
        self._settings, self._names, self._over_since = settings, frozenset(names), over_since
        self._segments = RecordedSegments(Archive(settings.archive, settings.s3))
        self._over: dict[str, int] = {}  # campaign → its newest seq when it was over
        self._anew: set[str] = set()  # campaigns that were over and are proposed after that
        self._known: dict[str, tuple[int, int]] = {}  # recorder → its node, and the seq up to which it was read
        self._upto: dict[int, int] = {}  # node → the seq up to which its journal was read last
        self._campaign_of: dict[int, str] = {}  # release → campaign
        # A release that two recorders have recorded, because one died before it acknowledged it: only one of them was queued.
        self._first_of: dict[str, int] = {}  # digest of a release → the seq under which it was read first
        self._same_as: dict[int, int] = {}  # seq of a release → the seq under which it was read first
        # Outcomes and answers whose trigger was not read yet. It was on disk before them, so the read after theirs finds it.
        self._unplaced: list[Message] = []

    @property
    def unplaced(self) -> int:
        """How many outcomes and answers wait for their release."""
        return len(self._unplaced)

    def read(self) -> Iterator[Facts]:
        """Yield the facts that are new since the last call, some at a time.

        Raises:
            Retryable: a recorder does not answer, or the archive cannot be read. The next call begins where this one stopped.
        """
        waited = {message[0] for message in self._unplaced}
        pages = {url: list(self._pages(url)) for url in self._settings.recorders}
        known = {url: (read[-1].node, max(read[-1].upto, read[-1].archived)) for url, read in pages.items()}
        recent = [(r.seq, r.stream, r.topic, r.payload) for read in pages.values() for page in read for r in page.records]
        self._upto = dict(known.values())
        try:
            missed = [self._begin(recent)] if not self._known else list(self._gaps(pages))
            # Triggers before outcomes and answers, because an outcome does not name its campaign.
            yield from self._batches(message for message in recent if message[1] not in ABOUT_ENTRIES)
            yield from self._archived(missed)
        except OSError as exc:
            raise Retryable(f"the archive {self._settings.archive} cannot be read ({exc}); see MANIFOLD_ARCHIVE_URL") from exc
        yield from self._batches(message for message in recent if message[1] in ABOUT_ENTRIES)
        self._known = known
        self._unplaced = [message for message in self._unplaced if message[0] not in waited]  # vehicles may answer to any seq
        while self._anew:
            yield from self._revived(name := min(self._anew))
            self._anew.discard(name)

    def forget(self, name: str, newest: int) -> None:
        """Stop following a campaign: it is over. `newest` is the newest seq that is known of it."""
        self._over[name] = newest
        self._campaign_of = {seq: campaign for seq, campaign in self._campaign_of.items() if campaign != name}
        self._same_as = {seq: first for seq, first in self._same_as.items() if seq in self._campaign_of}
        self._first_of = {digest: first for digest, first in self._first_of.items() if first in self._campaign_of}

    def leaves_out(self, name: str) -> bool:
        """Whether this campaign is over and no longer followed."""
        return name in self._over

    def _pages(self, url: str) -> Iterator[Page]:
        after, more = self._known.get(url, (0, 0))[1], True
        while more:
            page = self._page(url, after)
            after, more = page.upto, page.more
            yield page

    def _page(self, url: str, after: int) -> Page:
        try:
            request = Request(f"{url}/journal?after={after}", headers=self._settings.bearer)  # noqa: S310  # settings: http(s)
            with urlopen(request, timeout=WAIT_S, context=web_context(self._settings, url)) as answer:  # noqa: S310
                page = decode_page(answer.read())
        except (OSError, HTTPException, msgspec.MsgspecError) as exc:
            reason = exc.reason if isinstance(exc, URLError) else exc
            raise Retryable(
                f"the recorder at {url} does not tell its journal ({reason}); is it up? See `manifold status`"
            ) from exc
        self.clock_ms[url] = page.at_ms, monotonic()
        return page

    def _gaps(self, pages: Mapping[str, list[Page]]) -> Iterator[_Gap]:
        """The stretches that recorders moved from journal to archive before they were read."""
        for url, read in pages.items():
            known = self._known.get(url, (0, 0))[1]
            if read[-1].archived > known:
                yield known + 1, read[-1].node

    def _begin(self, recent: Collection[Message]) -> _Gap:
        """From where on the archive has to be read: the first order of the oldest campaign that is followed."""
        found = beginnings(lambda: self._orders(recent))
        if not self._names:
            self._over = {name: each.newest for name, each in found.items() if each.is_over and each.newest < self._over_since}
        return min((campaign.seq for name, campaign in found.items() if self._is_wanted(name)), default=MAX_SEQ), None

    def _orders(self, recent: Iterable[Message]) -> Iterator[tuple[int, Command]]:
        """All orders in the archive, and those among `recent`."""
        archived = self._segments.recorded_since(Stream.CAMPAIGN, 0)
        found = ((envelope.seq, envelope.payload) for envelope in archived if not envelope.refused_because)
        new = ((seq, payload) for seq, stream, _, payload in recent if stream == Stream.CAMPAIGN)
        for seq, payload in chain(found, new):
            order = decode(payload)
            if not isinstance(order, Refused):
                yield seq, order

    def _revived(self, name: str) -> Iterator[Facts]:
        """Yield what is on record of a campaign that was over, if that is gone and its name is used again."""
        facts = read_facts(self._settings, name)
        if fold(Campaign(), facts).decided.stage not in OVER:
            self._over.pop(name, None)
            yield {name: facts}

    def _archived(self, gaps: Collection[_Gap]) -> Iterator[Facts]:
        """Read stream by stream, because an outcome may be in one recorder's gap, and its trigger in another's."""
        for stream in (Stream.CAMPAIGN, Stream.TRIGGER, *ABOUT_ENTRIES):
            for since_seq, node in gaps:
                yield from self._batches(
                    (envelope.seq, envelope.stream, envelope.topic, envelope.payload)
                    for envelope in (self._segments.recorded_since(stream, since_seq, node) if since_seq < MAX_SEQ else ())
                    if envelope.refused_because is None and envelope.duplicate_of is None
                )

    def _batches(self, messages: Iterable[Message]) -> Iterator[Facts]:
        left = iter(messages)
        while some := list(islice(left, BATCH)):
            found: Facts = {}
            for name, fact in self._facts(some):
                found.setdefault(name, []).append(fact)
            if found:
                yield found

    def _facts(self, messages: Iterable[Message]) -> Iterator[tuple[str, Fact]]:
        """Yield facts with their wanted campaigns; what is about a release not read so far waits for the next call."""
        waiting, self._unplaced = self._unplaced, []
        for message in (*messages, *waiting):
            seq, stream, topic, payload = message
            if not may_be_fact(stream, topic):
                continue
            if stream in ABOUT_ENTRIES:
                yield from self._about_entry(message)
            elif stream == Stream.CAMPAIGN:
                order = decode(payload)
                if isinstance(order, Refused):
                    continue
                if isinstance(order, Propose) and seq > self._over.get(order.campaign, MAX_SEQ):
                    self._anew.add(order.campaign)
                if self._is_wanted(order.campaign):
                    yield order.campaign, Recorded(seq, order)
            elif (trigger := wire.trigger(payload)) is not None and self._is_wanted(trigger.request_id):
                release = wire.released(seq, trigger)
                if release is not None:
                    self._campaign_of[seq] = trigger.request_id
                    self._same_as[seq] = first = self._first_of.setdefault(trigger.digest, seq)
                    yield trigger.request_id, release if first == seq else msgspec.structs.replace(release, vins=())

    def _about_entry(self, message: Message) -> Iterator[tuple[str, Fact]]:
        """Yield an outcome or answer with its campaign; nothing if its release is of none, or not read so far."""
        seq, stream, topic, payload = message
        answer = None if stream == Stream.OUTCOME else parse_answer(topic, payload)
        if isinstance(answer, Refused):
            return
        try:
            release = wire.release_of(payload) if answer is None else answer.release
            name = self._campaign_of.get(release)
            if name is None:
                if release > self._upto.get(node_of(release), release):  # its recorder was not read so far
                    self._unplaced.append(message)
            elif answer is None:
                yield name, self._with_first_release(wire.ended(seq, OutcomeRecord.from_wire(payload)))
            elif answer.campaign == name:
                yield name, self._with_first_release(wire.answered(seq, answer))
        except ValueError:  # ingest quarantines it
            return

    def _with_first_release(self, fact: Ended | Answered) -> Ended | Answered:
        first = self._same_as[fact.release]
        return fact if first == fact.release else msgspec.structs.replace(fact, release=first)

    def _is_wanted(self, name: str) -> bool:
        return name in self._names if self._names else name not in self._over


def read_campaigns(settings: Settings, names: Collection[str] = (), *, over_since: int = MAX_SEQ) -> Mapping[str, Campaign]:
    """The state of the campaigns that a `CampaignRecord` would read, as it is on record now.

    Raises:
        Retryable: as for `CampaignRecord.read`.
    """
    campaigns: dict[str, Campaign] = {}
    for facts in CampaignRecord(settings, names, over_since=over_since).read():
        fold_into(campaigns, facts)
    return campaigns


def read_facts(settings: Settings, name: str) -> list[Fact]:
    """Everything that is on record of one campaign.

    Raises:
        Retryable: as for `CampaignRecord.read`.
    """
    return [fact for facts in CampaignRecord(settings, [name]).read() for fact in facts.get(name, ())]


def fold_into(campaigns: dict[str, Campaign], facts: Facts) -> None:
    """Fold facts into the campaigns that they concern."""
    for name, of_campaign in facts.items():
        campaigns[name] = fold(campaigns.get(name, Campaign()), of_campaign)
