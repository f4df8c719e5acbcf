"""The releases that were read from the record: the campaign of each, and the seq under which it was read first."""

from msgspec.structs import replace

from manifold.campaigns.facts import Answered, Ended, Released


class KnownReleases:
    """The releases of the followed campaigns that were read so far.

    If a recorder dies before it acknowledges a release, a second recorder may record the same release again. Only one of the two
    is queued. So both are treated as the one that was read first.
    """

    def __init__(self) -> None:
        self._campaign_of: dict[int, str] = {}  # seq of a release → campaign
        self._first_seq_of: dict[int, int] = {}  # seq of a release → the seq under which it was read first
        self._first_seq_of_digest: dict[str, int] = {}  # digest of a release → the seq under which it was read first

    def add(self, release: Released, campaign: str, digest: str) -> Released:
        """Add a release that was read, and return its fact.

        The fact of a second record of the same release names no vehicles, so that none counts twice.
        """
        first_seq = self._first_seq_of_digest.setdefault(digest, release.seq)
        self._campaign_of[release.seq] = campaign
        self._first_seq_of[release.seq] = first_seq
        return release if release.seq == first_seq else replace(release, vins=())

    def campaign_of(self, seq: int) -> str | None:
        """Return the campaign of the release that is recorded as `seq`; None if no such release is known."""
        return self._campaign_of.get(seq)

    def with_first_seq(self, fact: Ended | Answered) -> Ended | Answered:
        """Return the fact, which is about a known release, with the seq under which this release was read first."""
        first_seq = self._first_seq_of[fact.release]
        return fact if fact.release == first_seq else replace(fact, release=first_seq)

    def forget(self, campaign: str) -> None:
        """Forget the releases of a campaign."""
        self._campaign_of = {seq: name for seq, name in self._campaign_of.items() if name != campaign}
        self._first_seq_of = {seq: first for seq, first in self._first_seq_of.items() if seq in self._campaign_of}
        by_digest = self._first_seq_of_digest
        self._first_seq_of_digest = {digest: first for digest, first in by_digest.items() if first in self._campaign_of}
