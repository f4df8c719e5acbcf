"""The decoded content of an archive file, and the derivation of seqs for files without seqs."""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from manifold.contracts.seq import EPOCH_MS, NEVER_MS, SKIPPED_MS, TIME_SHIFT

# This bit is set in every derived seq. Recorders with a number below 512 never set it.
DERIVED = 1 << (TIME_SHIFT - 1)
MAX_MESSAGES_PER_MS = 1 << 16

Integers = npt.NDArray[np.int64]


class Unreadable(Exception):
    """A file in the archive is not a valid segment; the message says why. Retrying is useless, because files never change."""


@dataclass(frozen=True, slots=True)
class DecodedFile:
    """The messages of a file. A line that is not a message is a refused row with a negative seq."""

    messages: pa.Table
    derived: bool  # whether the seqs were derived from the path and the times of receipt, because the file has none

    @property
    def seqs(self) -> Integers:
        """The seqs of the messages, in the order of the file, without those of refused lines."""
        seqs: Integers = self.messages["seq"].to_numpy()
        return seqs[seqs >= 0]


def quarantine_seq(name: str) -> int:
    """The seq under which the invalid file or line of this name is quarantined.

    It is always the same for the same name. It is negative, so that no message has it.
    """
    return -int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest()) - 1


def derived_seqs(path: str, received_ms: Integers) -> Integers:
    """Derive the seqs of a file's messages from their times of receipt and the file's path.

    The time part of a seq is the time of receipt. The rest is a number derived from the path, plus the position of the message
    among the file's messages of the same millisecond. The order of seqs is thus that of times, then of rows. If two files have
    messages of the same millisecond, seqs collide with a probability of one in a million; `pipelines.ingest.planning` finds this.

    Args:
        path: the path of the file below the archive's root.
        received_ms: the times of receipt in Unix ms, by row.

    Raises:
        Unreadable: a time does not fit into a seq, or one millisecond has too many messages.
    """
    ms = np.where(received_ms == SKIPPED_MS, SKIPPED_MS + 1, received_ms)  # recorders, too, assign no seq in `SKIPPED_MS`
    if len(ms) and not (ms.min() >= EPOCH_MS and ms.max() <= NEVER_MS):
        raise Unreadable("received_at lies outside 2020 to 2089, and no seq can be made of it")
    order = np.argsort(ms, kind="stable")
    sorted_ms = ms[order]
    # Position within the millisecond: the index in sorted order minus the index of the first row of the same millisecond.
    position = np.empty_like(ms)
    position[order] = np.arange(len(ms)) - np.searchsorted(sorted_ms, sorted_ms, "left")
    if len(ms) and position.max() >= MAX_MESSAGES_PER_MS:
        raise Unreadable(f"more than {MAX_MESSAGES_PER_MS} messages of one millisecond; give them a seq")
    path_hash = int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8).digest())
    file_number = path_hash % (DERIVED - MAX_MESSAGES_PER_MS)
    seqs: Integers = ((ms - EPOCH_MS) << TIME_SHIFT) + (DERIVED + file_number) + position
    return seqs


def one_line(exc: Exception) -> str:
    """The message of an exception, on one line and at most 200 characters long."""
    return " ".join(str(exc).split())[:200]
