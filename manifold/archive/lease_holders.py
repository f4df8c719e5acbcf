"""The holders of recorder numbers, by their claims in the archive: a recorder that was not asked may hold accepted messages.

Recorders write the claims (`manifold/archive/claims.py`); each says until when its number is held, and whether it was released.
"""

from collections.abc import Collection
from datetime import UTC, datetime

import msgspec
from pyarrow import fs

from manifold.lake.storage import open_storage
from manifold.settings import Settings

FOLDER = "recorders"  # next to the archive's streams, with a folder per number


class Holder(msgspec.Struct, frozen=True):
    """The part of a claim that says who holds the number, and until when (Unix ms)."""

    where: str
    epoch: int
    until_ms: int
    released: bool = False


def unqueried_holders(settings: Settings, asked: Collection[int], now: datetime | None = None) -> dict[int, Holder]:
    """By number, the recorders that hold one now and are not among those `asked`.

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
    filesystem, root = open_storage(settings.archive, settings.s3)
    newest: dict[int, Holder] = {}
    for info in filesystem.get_file_info(fs.FileSelector(f"{root}/{FOLDER}", recursive=True, allow_not_found=True)):
        node, _, name = info.path.removeprefix(f"{root}/{FOLDER}/").partition("/")
        if not (node.isdecimal() and name.endswith(".json")) or name.startswith("."):
            continue
        try:
            with filesystem.open_input_file(info.path) as file:
                holder = msgspec.json.decode(file.read(), type=Holder)
        except (FileNotFoundError, msgspec.MsgspecError):  # removed meanwhile; or not a claim, which its recorder reports
            continue
        if holder.epoch >= newest.get(int(node), holder).epoch:
            newest[int(node)] = holder
    return newest
