"""Reads the facts of campaigns from the record, which is the archive and the journals of the recorders.

The journals are read before the archive. So a fact that moves from a journal to the archive during the read is not missed. A fact
may be read twice, or after later facts; neither changes the result of a fold.
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

REQUEST_TIMEOUT_S = 10.0
BATCH_MESSAGES = 50_000
Facts = dict[str, list[Fact]]  # by campaign
ENTRY_STREAMS = (Stream.OUTCOME, Stream.ANSWER)  # the streams of messages about the entries of a release
Message = tuple[int, str, str, bytes]  # seq, stream, topic, payload
_Gap = tuple[int, int | None]  # a part of the archive to read: the first seq, and the node of its recorder (None: of all)


class CampaignRecord:
    """Follows the record of campaigns. Every method blocks: call it in a thread.

    If `names` is given, only these campaigns are read. Otherwise, all campaigns are read except those that the first call of
    `read` finds to be over, with a newest order before the seq `ended_since`.
    """

    def __init__(self, settings: Settings, names: Collection[str] = (), *, ended_since: int = MAX_SEQ) -> None:
        self.clock_ms: dict[str, tuple[int, float]] = {}  # recorder URL → its clock, and when that was read (monotonic seconds)
        self._settings = settings
        self._names = frozenset(names)
        self._ended_since = ended_since
        self._segments = RecordedSegments(Archive(settings.archive, settings.s3))
        self._over: dict[str, int] = {}  # campaigns that are over → the newest seq that was known of them
        self._reproposed: set[str] = set()  # campaigns that were over and whose names are proposed again
        self._known: dict[str, tuple[int, int]] = {}  # recorder URL → its node, and the seq up to which its journal was read
        self._upto: dict[int, int] = {}  # node → the seq up to which its journal has been read
        self._campaign_of: dict[int, str] = {}  # seq of a release → campaign
        # If a recorder dies before it acknowledges a release, a second recorder may record the same release again. Only one of
        # the two is queued. So both are treated as the one that was read first.
        self._first_of: dict[str, int] = {}  # digest of a release → the seq under which it was read first
        self._same_as: dict[int, int] = {}  # seq of a release → the seq under which it was read first
        # Outcomes and answers whose release is not read yet. A release is on disk before them, so the next read finds it.
        self._unplaced: list[Message] = []

    @property
    def unplaced(self) -> int:
        """The number of outcomes and answers that wait for their release."""
        return len(self._unplaced)

    def read(self) -> Iterator[Facts]:
        """Yield the facts that are new since the last call, in several batches.

        Raises:
            Retryable: a recorder does not answer, or the archive cannot be read. The next call reads these facts again.
        """
        waiting_seqs = {seq for seq, *_ in self._unplaced}
        pages_of = {url: list(self._pages(url)) for url in self._settings.recorders}
        known: dict[str, tuple[int, int]] = {}
        journaled: list[Message] = []
        for url, pages in pages_of.items():
            last_page = pages[-1]
            known[url] = last_page.node, max(last_page.upto, last_page.archived)
            for page in pages:
                journaled += [(record.seq, record.stream, record.topic, record.payload) for record in page.records]
        self._upto = dict(known.values())
        try:
            gaps = list(self._gaps(pages_of)) if self._known else [self._first_gap(journaled)]
            # Releases are read before outcomes and answers, because an outcome names only its release, not its campaign.
            yield from self._batches(message for message in journaled if message[1] not in ENTRY_STREAMS)
            yield from self._archived(gaps)
        except OSError as exc:
            raise Retryable(f"the archive {self._settings.archive} cannot be read ({exc}); see MANIFOLD_ARCHIVE_URL") from exc
        yield from self._batches(message for message in journaled if message[1] in ENTRY_STREAMS)
        self._known = known
        # A message that has waited since the last call belongs to no release: a vehicle may name any seq in its answer.
        self._unplaced = [message for message in self._unplaced if message[0] not in waiting_seqs]
        while self._reproposed:
            name = min(self._reproposed)
            yield from self._revived(name)
            self._reproposed.discard(name)

    def forget(self, name: str, newest: int) -> None:
        """Stop following a campaign that is over. `newest` is the newest seq that is known of the campaign."""
        self._over[name] = newest
        self._campaign_of = {seq: campaign for seq, campaign in self._campaign_of.items() if campaign != name}
        self._same_as = {seq: first for seq, first in self._same_as.items() if seq in self._campaign_of}
        self._first_of = {digest: first for digest, first in self._first_of.items() if first in self._campaign_of}

    def leaves_out(self, name: str) -> bool:
        """Whether this campaign is over and no longer followed."""
        return name in self._over

    def _pages(self, url: str) -> Iterator[Page]:
        """Yield the pages of a recorder's journal that were not read yet."""
        _, after = self._known.get(url, (0, 0))
        while True:
            page = self._page(url, after)
            yield page
            if not page.more:
                return
            after = page.upto

    def _page(self, url: str, after: int) -> Page:
        """Return the page of a recorder's journal that begins after the seq `after`."""
        try:
            request = Request(f"{url}/journal?after={after}", headers=self._settings.bearer)  # noqa: S310  # settings: http(s)
            context = web_context(self._settings, url)
            with urlopen(request, timeout=REQUEST_TIMEOUT_S, context=context) as response:  # noqa: S310
                page = decode_page(response.read())
        except (OSError, HTTPException, msgspec.MsgspecError) as exc:
            reason = exc.reason if isinstance(exc, URLError) else exc
            raise Retryable(
                f"the recorder at {url} does not tell its journal ({reason}); is it up? See `manifold status`"
            ) from exc
        self.clock_ms[url] = page.at_ms, monotonic()
        return page

    def _gaps(self, pages_of: Mapping[str, list[Page]]) -> Iterator[_Gap]:
        """Yield the parts of journals that were archived before this object read them."""
        for url, pages in pages_of.items():
            _, upto = self._known.get(url, (0, 0))
            last_page = pages[-1]
            if last_page.archived > upto:
                yield upto + 1, last_page.node

    def _first_gap(self, journaled: Collection[Message]) -> _Gap:
        """Return the part of the archive for the first call of `read`, and note which campaigns are over.

        The part begins at the first order of the oldest campaign that is followed.
        """
        by_name = beginnings(lambda: self._orders(journaled))
        if not self._names:
            over = {name: campaign.newest for name, campaign in by_name.items() if campaign.is_over}
            self._over = {name: newest for name, newest in over.items() if newest < self._ended_since}
        followed_seqs = (campaign.seq for name, campaign in by_name.items() if self._is_wanted(name))
        return min(followed_seqs, default=MAX_SEQ), None

    def _orders(self, journaled: Iterable[Message]) -> Iterator[tuple[int, Command]]:
        """Yield all orders in the archive and among the messages of the journals, with their seqs."""
        envelopes = self._segments.recorded_since(Stream.CAMPAIGN, 0)
        archived_payloads = ((envelope.seq, envelope.payload) for envelope in envelopes if not envelope.refused_because)
        journaled_payloads = ((seq, payload) for seq, stream, _, payload in journaled if stream == Stream.CAMPAIGN)
        for seq, payload in chain(archived_payloads, journaled_payloads):
            order = decode(payload)
            if not isinstance(order, Refused):
                yield seq, order

    def _revived(self, name: str) -> Iterator[Facts]:
        """Yield all facts of a name whose campaign was over, if a new campaign uses the name since the old record has expired."""
        facts = read_facts(self._settings, name)
        if fold(Campaign(), facts).decided.stage not in OVER:  # so these are the facts of a new campaign
            self._over.pop(name, None)
            yield {name: facts}

    def _archived(self, gaps: Collection[_Gap]) -> Iterator[Facts]:
        """Yield the facts in these parts of the archive.

        The streams are read one after the other, because an outcome may be in one recorder's part and its release in another's.
        """
        for stream in (Stream.CAMPAIGN, Stream.TRIGGER, *ENTRY_STREAMS):
            for since_seq, node in gaps:
                if since_seq < MAX_SEQ:
                    yield from self._batches(self._archived_messages(stream, since_seq, node))

    def _archived_messages(self, stream: Stream, since_seq: int, node: int | None) -> Iterator[Message]:
        """Yield the messages of a stream from a seq on, without refused messages and duplicates."""
        for envelope in self._segments.recorded_since(stream, since_seq, node):
            if envelope.refused_because is None and envelope.duplicate_of is None:
                yield envelope.seq, envelope.stream, envelope.topic, envelope.payload

    def _batches(self, messages: Iterable[Message]) -> Iterator[Facts]:
        """Yield the facts in these messages by campaign, for `BATCH_MESSAGES` messages at a time."""
        remaining = iter(messages)
        while batch := list(islice(remaining, BATCH_MESSAGES)):
            facts: Facts = {}
            for name, fact in self._facts(batch):
                facts.setdefault(name, []).append(fact)
            if facts:
                yield facts

    def _facts(self, messages: Iterable[Message]) -> Iterator[tuple[str, Fact]]:
        """Yield the facts of followed campaigns, each with the name of its campaign.

        Outcomes and answers whose release is not read yet wait for the next call.
        """
        waiting, self._unplaced = self._unplaced, []
        for message in (*messages, *waiting):
            seq, stream, topic, payload = message
            if not may_be_fact(stream, topic):
                continue
            if stream in ENTRY_STREAMS:
                yield from self._entry_fact(message)
            elif stream == Stream.CAMPAIGN:
                yield from self._order_fact(seq, payload)
            else:
                yield from self._release_fact(seq, payload)

    def _order_fact(self, seq: int, payload: bytes) -> Iterator[tuple[str, Fact]]:
        """Yield an order with its campaign; nothing if the campaign is not followed."""
        order = decode(payload)
        if isinstance(order, Refused):
            return
        if isinstance(order, Propose) and seq > self._over.get(order.campaign, MAX_SEQ):
            self._reproposed.add(order.campaign)
        if self._is_wanted(order.campaign):
            yield order.campaign, Recorded(seq, order)

    def _release_fact(self, seq: int, payload: bytes) -> Iterator[tuple[str, Fact]]:
        """Yield a release with its campaign; nothing for an ordinary trigger, or if the campaign is not followed."""
        trigger = wire.trigger(payload)
        if trigger is None or not self._is_wanted(trigger.request_id):
            return
        release = wire.released(seq, trigger)
        if release is None:
            return
        first_seq = self._first_of.setdefault(trigger.digest, seq)
        self._campaign_of[seq] = trigger.request_id
        self._same_as[seq] = first_seq
        if seq != first_seq:  # a second record of the same release names no vehicles, so that none counts twice
            release = msgspec.structs.replace(release, vins=())
        yield trigger.request_id, release

    def _entry_fact(self, message: Message) -> Iterator[tuple[str, Fact]]:
        """Yield an outcome or answer with its campaign; nothing if its release is not read yet, or is of no followed campaign."""
        seq, stream, topic, payload = message
        answer = None if stream == Stream.OUTCOME else parse_answer(topic, payload)
        if isinstance(answer, Refused):
            return
        try:
            release = wire.release_of(payload) if answer is None else answer.release
            name = self._campaign_of.get(release)
            if name is None:
                journal_upto = self._upto.get(node_of(release), release)
                if release > journal_upto:  # the release may be in a part of the journal that is not read yet
                    self._unplaced.append(message)
            elif answer is None:
                yield name, self._with_first_release(wire.ended(seq, OutcomeRecord.from_wire(payload)))
            elif answer.campaign == name:
                yield name, self._with_first_release(wire.answered(seq, answer))
        except ValueError:  # an invalid outcome is no fact; ingest quarantines the message
            return

    def _with_first_release(self, fact: Ended | Answered) -> Ended | Answered:
        """Return the fact with the seq under which its release was read first."""
        first_seq = self._same_as[fact.release]
        return fact if first_seq == fact.release else msgspec.structs.replace(fact, release=first_seq)

    def _is_wanted(self, name: str) -> bool:
        """Whether this campaign is followed."""
        return name in self._names if self._names else name not in self._over


def read_campaigns(settings: Settings, names: Collection[str] = (), *, ended_since: int = MAX_SEQ) -> Mapping[str, Campaign]:
    """Return campaign name → present state, for the campaigns that `CampaignRecord` reads with the same arguments.

    Raises:
        Retryable: as for `CampaignRecord.read`.
    """
    campaigns: dict[str, Campaign] = {}
    for facts in CampaignRecord(settings, names, ended_since=ended_since).read():
        fold_into(campaigns, facts)
    return campaigns


def read_facts(settings: Settings, name: str) -> list[Fact]:
    """Return all recorded facts of one campaign.

    Raises:
        Retryable: as for `CampaignRecord.read`.
    """
    return [fact for facts in CampaignRecord(settings, [name]).read() for fact in facts.get(name, ())]


def fold_into(campaigns: dict[str, Campaign], facts: Facts) -> None:
    """Fold facts into the campaigns with their names, in place."""
    for name, campaign_facts in facts.items():
        campaigns[name] = fold(campaigns.get(name, Campaign()), campaign_facts)
