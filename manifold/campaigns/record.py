"""Reads the facts of campaigns from the record, which is the archive and the journals of the recorders.

The journals are read before the archive. So a fact that moves from a journal to the archive during the read is not missed. A fact
may be read twice, or after later facts; neither changes the result of a fold.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from time import monotonic
from typing import NamedTuple

from manifold.archive.recorded import RecordedSegments
from manifold.archive.store import Archive
from manifold.archive.tail import Page, may_be_fact
from manifold.campaigns import wire
from manifold.campaigns.beginnings import beginnings
from manifold.campaigns.decided import OVER
from manifold.campaigns.facts import Fact, Recorded
from manifold.campaigns.fold import Campaign, fold
from manifold.campaigns.journals import read_page
from manifold.campaigns.known_releases import KnownReleases
from manifold.contracts.answers import parse_answer
from manifold.contracts.campaigns import Command, Propose, decode
from manifold.contracts.envelope import Stream
from manifold.contracts.errors import Retryable
from manifold.contracts.messages import Refused
from manifold.contracts.outcomes import OutcomeRecord
from manifold.contracts.seq import MAX_SEQ, node_of
from manifold.settings import Settings

BATCH_MESSAGES = 50_000
Facts = dict[str, list[Fact]]  # by campaign
_NamedFact = tuple[str, Fact]  # the name of its campaign, and the fact
ENTRY_STREAMS = (Stream.OUTCOME, Stream.ANSWER)  # the streams of messages about the entries of a release


class _Message(NamedTuple):
    """A recorded message that may be a fact of a campaign."""

    seq: int
    stream: str
    topic: str
    payload: bytes


class _ArchivePart(NamedTuple):
    """A part of the archive to read."""

    since_seq: int
    node: int | None  # read only the messages of this recorder; None: of all recorders


class _JournalPosition(NamedTuple):
    """Up to which seq the messages of a recorder have been read, from its journal or, if they were archived, from the archive."""

    node: int
    upto: int


class CampaignRecord:
    """Follows the record of campaigns. Every method blocks: call it in a thread.

    If `names` is given, only these campaigns are read. Otherwise, all campaigns are read except those that the first call of
    `read` finds to be over, with a newest order before the seq `ended_since`.
    """

    def __init__(self, settings: Settings, names: Collection[str] = (), *, ended_since: int = MAX_SEQ) -> None:
        self.clocks: dict[str, tuple[int, float]] = {}  # recorder URL → its clock (Unix ms), and when it was read (monotonic s)
        self._settings = settings
        self._names = frozenset(names)
        self._ended_since = ended_since
        self._segments = RecordedSegments(Archive(settings.archive, settings.s3))
        self._over: dict[str, int] = {}  # campaigns that are over → the newest seq that was known of them
        self._reproposed: set[str] = set()  # campaigns that were over and whose names are proposed again
        self._positions: dict[str, _JournalPosition] = {}  # by recorder URL; after the last read that was complete
        self._upto_of_node: dict[int, int] = {}  # node → the seq up to which the read under way reads
        self._releases = KnownReleases()
        # Outcomes and answers whose release is not read yet. A release is on disk before them, so the next read finds it.
        self._awaiting_release: list[_Message] = []

    @property
    def awaiting_release(self) -> int:
        """The number of outcomes and answers that wait for their release."""
        return len(self._awaiting_release)

    def read(self) -> Iterator[Facts]:
        """Yield the facts that are new since the last call, in several batches.

        Raises:
            Retryable: a recorder does not answer, or the archive cannot be read. The next call reads these facts again.
        """
        waiting_seqs = {message.seq for message in self._awaiting_release}
        pages_of = {url: list(self._pages(url)) for url in self._settings.recorders}
        positions: dict[str, _JournalPosition] = {}
        journaled: list[_Message] = []
        for url, pages in pages_of.items():
            last_page = pages[-1]
            positions[url] = _JournalPosition(last_page.node, max(last_page.upto, last_page.archived))
            for page in pages:
                journaled += [_Message(record.seq, record.stream, record.topic, record.payload) for record in page.records]
        self._upto_of_node = {position.node: position.upto for position in positions.values()}
        try:
            parts = list(self._new_parts(pages_of)) if self._positions else self._first_parts(journaled)
            # Releases are read before outcomes and answers, because an outcome names only its release, not its campaign.
            yield from self._batches(message for message in journaled if message.stream not in ENTRY_STREAMS)
            yield from self._archived(parts)
        except OSError as exc:
            raise Retryable(f"the archive {self._settings.archive} cannot be read ({exc}); see MANIFOLD_ARCHIVE_URL") from exc
        yield from self._batches(message for message in journaled if message.stream in ENTRY_STREAMS)
        self._positions = positions  # not before, so that the next call reads these facts again if this one fails
        # A message that has waited since the last call belongs to no release: a vehicle may name any seq in its answer.
        self._awaiting_release = [message for message in self._awaiting_release if message.seq not in waiting_seqs]
        while self._reproposed:
            name = min(self._reproposed)
            yield from self._facts_of_reused_name(name)
            self._reproposed.discard(name)  # not before, for the same reason

    def forget(self, name: str, newest: int) -> None:
        """Stop following a campaign that is over. `newest` is the newest seq that is known of the campaign."""
        self._over[name] = newest
        self._releases.forget(name)

    def leaves_out(self, name: str) -> bool:
        """Whether this campaign is over and no longer followed."""
        return name in self._over

    def _pages(self, url: str) -> Iterator[Page]:
        """Yield the pages of a recorder's journal that were not read yet."""
        after = self._positions[url].upto if url in self._positions else 0
        while True:
            page = read_page(self._settings, url, after)
            self.clocks[url] = page.at_ms, monotonic()
            yield page
            if not page.more:
                return
            after = page.upto

    def _new_parts(self, pages_of: Mapping[str, list[Page]]) -> Iterator[_ArchivePart]:
        """Yield the parts of journals that were archived before this object read them."""
        for url, pages in pages_of.items():
            upto = self._positions[url].upto if url in self._positions else 0
            last_page = pages[-1]
            if last_page.archived > upto:
                yield _ArchivePart(upto + 1, last_page.node)

    def _first_parts(self, journaled: Collection[_Message]) -> list[_ArchivePart]:
        """Find out which campaigns are over, and return the part of the archive for the first call of `read`, in a list.

        The part begins at the first order of the oldest campaign that is followed. If none is followed, the list is empty.
        """
        by_name = beginnings(lambda: self._orders(journaled))
        if not self._names:
            over = {name: campaign.newest_seq for name, campaign in by_name.items() if campaign.is_over}
            self._over = {name: newest for name, newest in over.items() if newest < self._ended_since}
        followed_seqs = [campaign.first_seq for name, campaign in by_name.items() if self._is_followed(name)]
        return [_ArchivePart(min(followed_seqs), node=None)] if followed_seqs else []

    def _orders(self, journaled: Iterable[_Message]) -> Iterator[tuple[int, Command]]:
        """Yield all orders in the archive and among the messages of the journals, with their seqs."""
        envelopes = self._segments.recorded_since(Stream.CAMPAIGN, 0)
        archived_payloads = ((envelope.seq, envelope.payload) for envelope in envelopes if not envelope.refused_because)
        journaled_payloads = ((message.seq, message.payload) for message in journaled if message.stream == Stream.CAMPAIGN)
        for seq, payload in chain(archived_payloads, journaled_payloads):
            order = decode(payload)
            if not isinstance(order, Refused):
                yield seq, order

    def _facts_of_reused_name(self, name: str) -> Iterator[Facts]:
        """Yield all facts of a name whose campaign was over, if a new campaign uses the name since the old record has expired."""
        facts = read_facts(self._settings, name)
        if fold(Campaign(), facts).decided.stage not in OVER:  # so these are the facts of a new campaign
            self._over.pop(name, None)
            yield {name: facts}

    def _archived(self, parts: Collection[_ArchivePart]) -> Iterator[Facts]:
        """Yield the facts in these parts of the archive.

        The streams are read one after the other, because an outcome may be in one recorder's part and its release in another's.
        """
        for stream in (Stream.CAMPAIGN, Stream.TRIGGER, *ENTRY_STREAMS):
            for part in parts:
                yield from self._batches(self._archived_messages(stream, part))

    def _archived_messages(self, stream: Stream, part: _ArchivePart) -> Iterator[_Message]:
        """Yield the messages of a stream in a part of the archive, without refused messages and duplicates."""
        for envelope in self._segments.recorded_since(stream, part.since_seq, part.node):
            if envelope.refused_because is None and envelope.duplicate_of is None:
                yield _Message(envelope.seq, envelope.stream, envelope.topic, envelope.payload)

    def _batches(self, messages: Iterable[_Message]) -> Iterator[Facts]:
        """Yield the facts in these messages by campaign, for `BATCH_MESSAGES` messages at a time."""
        remaining = iter(messages)
        while batch := list(islice(remaining, BATCH_MESSAGES)):
            facts: Facts = {}
            waiting, self._awaiting_release = self._awaiting_release, []  # those that still wait afterwards are added again
            for message in (*batch, *waiting):
                named_fact = self._fact_of(message)
                if named_fact is not None:
                    name, fact = named_fact
                    facts.setdefault(name, []).append(fact)
            if facts:
                yield facts

    def _fact_of(self, message: _Message) -> _NamedFact | None:
        """Return the fact in a message; None if it has no fact of a followed campaign, or waits until its release is read."""
        if not may_be_fact(message.stream, message.topic):
            return None
        if message.stream == Stream.OUTCOME:
            return self._outcome(message)
        if message.stream == Stream.ANSWER:
            return self._answer(message)
        if message.stream == Stream.CAMPAIGN:
            return self._order(message)
        return self._release(message)

    def _order(self, message: _Message) -> _NamedFact | None:
        """Return an order with its campaign; None if it is invalid, or the campaign is not followed."""
        order = decode(message.payload)
        if isinstance(order, Refused):
            return None
        newest_of_over = self._over.get(order.campaign)
        if isinstance(order, Propose) and newest_of_over is not None and message.seq > newest_of_over:
            self._reproposed.add(order.campaign)
        return (order.campaign, Recorded(message.seq, order)) if self._is_followed(order.campaign) else None

    def _release(self, message: _Message) -> _NamedFact | None:
        """Return a release with its campaign, the request_id; None for other triggers, or if the campaign is not followed."""
        trigger = wire.trigger(message.payload)
        if trigger is None or not self._is_followed(trigger.request_id):
            return None
        release = wire.released(message.seq, trigger)
        if release is None:
            return None
        return trigger.request_id, self._releases.add(release, trigger.request_id, trigger.digest)

    def _outcome(self, message: _Message) -> _NamedFact | None:
        """Return the ending of an entry with its campaign; None if the campaign of its release is not known."""
        try:
            name = self._campaign_of_release(wire.release_of(message.payload), message)
            if name is None:
                return None
            return name, self._releases.with_first_seq(wire.ended(message.seq, OutcomeRecord.from_wire(message.payload)))
        except ValueError:  # an invalid outcome is no fact; ingest quarantines the message
            return None

    def _answer(self, message: _Message) -> _NamedFact | None:
        """Return a vehicle's answer with its campaign; None if it is invalid, or if that is not the campaign of its release."""
        answer = parse_answer(message.topic, message.payload)
        if isinstance(answer, Refused):
            return None
        if self._campaign_of_release(answer.release, message) != answer.campaign:
            return None
        return answer.campaign, self._releases.with_first_seq(wire.answered(message.seq, answer))

    def _campaign_of_release(self, release: int, message: _Message) -> str | None:
        """Return the followed campaign of the release that an outcome or answer is about; None if the release is not known.

        If the release may be in a part of a journal that is not read yet, the message is kept until the next call of `read`.
        """
        name = self._releases.campaign_of(release)
        if name is None:
            journal_upto = self._upto_of_node.get(node_of(release))
            if journal_upto is not None and release > journal_upto:
                self._awaiting_release.append(message)
        return name

    def _is_followed(self, name: str) -> bool:
        if self._names:
            return name in self._names
        return name not in self._over


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
    facts: list[Fact] = []
    for batch in CampaignRecord(settings, [name]).read():
        facts += batch.get(name, ())
    return facts


def fold_into(campaigns: dict[str, Campaign], facts: Facts) -> None:
    """Fold facts into the campaigns with their names, in place."""
    for name, campaign_facts in facts.items():
        campaigns[name] = fold(campaigns.get(name, Campaign()), campaign_facts)
