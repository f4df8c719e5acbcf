"""Finds the holders of recorder numbers by their claims in the archive (`manifold/archive/claims.py`).

This shows whether there are recorders that were not called to close their segments: they may have accepted messages in their
journals.
"""

from collections.abc import Collection
from datetime import UTC, datetime

import msgspec
from pyarrow import fs

from manifold.lake.storage import open_storage
from manifold.settings import Settings

FOLDER = "recorders"  # folder in the archive, next to the streams, with a folder per number


class Holder(msgspec.Struct, frozen=True):
    """The fields of a claim that tell who holds the number, and until when (Unix ms)."""

    where: str
    epoch: int
    until_ms: int
    released: bool = False


def unqueried_holders(settings: Settings, asked: Collection[int], now: datetime | None = None) -> dict[int, Holder]:
    """Number → its holder, for all numbers that are held at `now` (default: the present) and are not in `asked`.

    Raises:
        OSError: the archive is unavailable.
    """
    now_ms = (now or datetime.now(UTC)).timestamp() * 1000
    return {
        node: holder
        for node, holder in _holders(settings).items()
        if node not in asked and not holder.released and holder.until_ms > now_ms
    }


def _holders(settings: Settings) -> dict[int, Holder]:
    """Number → its newest claim."""
    filesystem, root = open_storage(settings.archive, settings.s3)
    newest: dict[int, Holder] = {}
    for info in filesystem.get_file_info(fs.FileSelector(f"{root}/{FOLDER}", recursive=True, allow_not_found=True)):
        node, _, name = info.path.removeprefix(f"{root}/{FOLDER}/").partition("/")
        if not (node.isdecimal() and name.endswith(".json")) or name.startswith("."):
            continue
        try:
            with filesystem.open_input_file(info.path) as file:
                holder = msgspec.json.decode(file.read(), type=Holder)
        except (FileNotFoundError, msgspec.MsgspecError):  # removed after it was listed, or not a claim, which recorders report
            continue
        if holder.epoch >= newest.get(int(node), holder).epoch:
            newest[int(node)] = holder
    return newest
