"""The decoded content of an archive file, and the seqs derived for a file that has none."""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from manifold.contracts.seq import EPOCH_MS, MAX_SEQ, SKIPPED_MS, TIME_SHIFT

# A derived seq has this bit, and no recorder with a node number below 512 gives such a one.
DERIVED = 1 << (TIME_SHIFT - 1)
MAX_MESSAGES_PER_MS = 1 << 16

Integers = npt.NDArray[np.int64]


class Unreadable(Exception):
    """A file in the archive is no segment; the message says why. It will not become one: segments never change."""


@dataclass(frozen=True, slots=True)
class DecodedFile:
    """The messages of one file. A line that is no message is a refused row with a negative seq."""

    messages: pa.Table
    derived: bool  # the file gives no seq: they follow from its path and from when the messages came

    @property
    def seqs(self) -> Integers:
        """The seqs of its messages, in its order."""
        seqs: Integers = self.messages["seq"].to_numpy()
        return seqs[seqs >= 0]


def own_seq(name: str) -> int:
    """The quarantine key of a file, or of a line, that is no message: negative, so no message has it, and the same each time."""
    return -int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest()) - 1


def derived_seqs(path: str, received_ms: Integers) -> Integers:
    """The seqs of a file that gives none: in the order of time, and within a millisecond in the order of the rows.

    The time's part is when the message came; the rest is a number that follows from the path, plus the place within the
    millisecond. Two files that share a millisecond have a chance of one in a million to meet; `pipelines.ingest.planning` looks.

    Raises:
        Unreadable: a time that no seq can hold, or too many messages of one millisecond.
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
    """The message of an exception, shortened to one line."""
    return " ".join(str(exc).split())[:200]
