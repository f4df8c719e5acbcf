"""`python -m tests.faults.held_recorder <file>`: the recorder with a disk that takes nothing while that file exists.

Whatever is on disk by then is shown to readers of the journal, as by a recorder whose disk is slow.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from manifold.archive.journal import Journal, JournalFile
from manifold.contracts.envelope import Envelope

LOOK_S = 0.02


def hold(file: Path) -> None:
    """Let the journal of this process wait while the file exists."""
    append, is_held = Journal.append, file.exists

    async def held(self: Journal, envelopes: Sequence[Envelope]) -> JournalFile:
        while is_held():  # noqa: ASYNC110  # another process removes the file
            await asyncio.sleep(LOOK_S)
        return await append(self, envelopes)

    Journal.append = held  # type: ignore[method-assign]


if __name__ == "__main__":
    from manifold.recorder.__main__ import main

    hold(Path(sys.argv[1]))
    sys.exit(main())
