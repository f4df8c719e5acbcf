"""The decoded content of an archive file, and derived seqs for a file that has none."""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from manifold.contracts.seq import EPOCH_MS, MAX_SEQ, SKIPPED_MS, TIME_SHIFT

# Set in every derived seq; recorders with a node number below 512 never set it.
DERIVED = 1 << (TIME_SHIFT - 1)
MAX_MESSAGES_PER_MS = 1 << 16

Integers = npt.NDArray[np.int64]


class Unreadable(Exception):
    """A file in the archive is not a segment; the message says why. Permanent, because segments never change."""


@dataclass(frozen=True, slots=True)
class DecodedFile:
    """The messages of one file. An invalid line becomes a refused row with a negative seq."""

    messages: pa.Table
    derived: bool  # the file has no seqs: they are derived from its path and the times of receipt

    @property
    def seqs(self) -> Integers:
        """The seqs of the file's messages, in its order."""
        seqs: Integers = self.messages["seq"].to_numpy()
        return seqs[seqs >= 0]


def own_seq(name: str) -> int:
    """The quarantine key of an invalid file or line: negative, so that no message has it, and always the same."""
    return -int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest()) - 1


def derived_seqs(path: str, received_ms: Integers) -> Integers:
    """Derive seqs for a file without any: in order of time, and within a millisecond in the order of the rows.

    The time part is the time of receipt; the rest is a number derived from the path, plus the position within the millisecond.
    Two files that share a millisecond collide with a probability of one in a million; `pipelines.ingest.planning` checks for it.

    Raises:
        Unreadable: a time that does not fit into a seq, or too many messages in one millisecond.
    """
    ms = np.where(received_ms == SKIPPED_MS, SKIPPED_MS + 1, received_ms)
    if len(ms) and not (ms.min() >= EPOCH_MS and ms.max() <= (MAX_SEQ >> TIME_SHIFT) + EPOCH_MS):
        raise Unreadable("received_at lies outside 2020 to 2089, and no seq can be made of it")
    order = np.argsort(ms, kind="stable")
    in_order = ms[order]
    place = np.empty_like(ms)
    place[order] = np.arange(len(ms)) - np.searchsorted(in_order, in_order, "left")
    if len(ms) and place.max() >= MAX_MESSAGES_PER_MS:
        raise Unreadable(f"more than {MAX_MESSAGES_PER_MS} messages of one millisecond; give them a seq")
    of_file = int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8).digest()) % (DERIVED - MAX_MESSAGES_PER_MS)
    seqs: Integers = ((ms - EPOCH_MS) << TIME_SHIFT) + (DERIVED + of_file) + place
    return seqs


def one_line(exc: Exception) -> str:
    """Shorten the message of an exception to one line."""
    return " ".join(str(exc).split())[:200]
