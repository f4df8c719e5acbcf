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


def current_holders(settings: Settings, *, excluding: Collection[int] = (), now: datetime | None = None) -> dict[int, Holder]:
    """Number → its holder, for all numbers that are held at `now` (default: the present), except the numbers in `excluding`.

    Raises:
        OSError: the archive is unavailable.
    """
    now_ms = (now or datetime.now(UTC)).timestamp() * 1000
    return {
        node: holder
        for node, holder in _newest_claims(settings).items()
        if node not in excluding and not holder.released and holder.until_ms > now_ms
    }


def _newest_claims(settings: Settings) -> dict[int, Holder]:
    """Number → its claim with the greatest epoch, even if that claim was released or has expired."""
    filesystem, root = open_storage(settings.archive, settings.s3)
    newest: dict[int, Holder] = {}
    for info in filesystem.get_file_info(fs.FileSelector(f"{root}/{FOLDER}", recursive=True, allow_not_found=True)):
        folder, _, name = info.path.removeprefix(f"{root}/{FOLDER}/").partition("/")
        is_claim = folder.isdecimal() and name.endswith(".json") and not name.startswith(".")
        if not is_claim:
            continue
        try:
            with filesystem.open_input_file(info.path) as file:
                holder = msgspec.json.decode(file.read(), type=Holder)
        except (FileNotFoundError, msgspec.MsgspecError):  # removed after it was listed, or not a claim, which recorders report
            continue
        node = int(folder)
        if node not in newest or holder.epoch >= newest[node].epoch:
            newest[node] = holder
    return newest
