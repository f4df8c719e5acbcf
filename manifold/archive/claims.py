"""Claims to a recorder number: one for each epoch of a journal folder, in the archive and in Redis."""

import asyncio
from typing import Any, Protocol

import msgspec
from pyarrow import fs as pafs
from redis.asyncio import Redis
from redis.exceptions import RedisError

from manifold.archive.lease_holders import FOLDER
from manifold.contracts import keys
from manifold.contracts.errors import Retryable
from manifold.contracts.storage import S3
from manifold.lake.storage import open_storage, write_bytes

ANSWER_S = 5.0  # a store that takes longer counts as away


class Claim(msgspec.Struct, frozen=True):
    """The claim of a recorder to its number, written by its own folder alone. Instants: Unix milliseconds, by its clock.

    Each epoch of a place has a claim of its own, so that whoever removes one that is over, late, does not remove its successor.
    """

    place: str
    journal: str
    where: str  # for an operator: host, folder, process
    epoch: int  # greater than that of every claim before it: the greatest one counts
    after_ms: int  # it gives no seq up to here: others had them
    upto_ms: int  # it gives no seq of a later millisecond, unless it has said so first ...
    until_ms: int  # ... or can reach nobody to say it to; then none later than this
    released: bool = False  # it has ended, and gave none later than upto_ms

    @property
    def name(self) -> str:
        """Under what stores keep it."""
        return f"{self.place}.{self.epoch}"


class Store(Protocol):
    """Keeps the claims of one number. What `put` has returned from, every later `claims` of anybody has, and never less.

    Raises:
        Retryable: from every method: the store is away; a `put` may have happened.
    """

    async def put(self, claim: Claim) -> None:
        """Write one's own claim, in place of the one before of the same epoch."""

    async def claims(self) -> list[Claim]:
        """All claims."""

    async def remove(self, claim: Claim) -> None:
        """Forget a claim, whatever its place has made of it since."""


class ArchiveClaims:
    """A small file for each claim, in `<archive>/recorders/<node>/`."""

    name = "the archive"

    def __init__(self, url: str, s3: S3, node: int) -> None:
        self._fs, self._root = open_storage(url, s3)
        self._folder = f"{FOLDER}/{node}"
        self._call: asyncio.Future[Any] | None = None

    async def put(self, claim: Claim) -> None:
        """As `Store` has it."""
        wire = msgspec.json.encode(claim)
        await self._ask(lambda: write_bytes(self._fs, self._root, self._path(claim), wire))

    async def claims(self) -> list[Claim]:
        """As `Store` has it."""
        found: list[Claim] = await self._ask(self._read)
        return found

    async def remove(self, claim: Claim) -> None:
        """As `Store` has it."""
        await self._ask(lambda: self._fs.delete_file(f"{self._root}/{self._path(claim)}"))

    def _path(self, claim: Claim) -> str:
        return f"{self._folder}/{claim.name}.json"

    def _read(self) -> list[Claim]:
        selector = pafs.FileSelector(f"{self._root}/{self._folder}", allow_not_found=True)
        return [claim for info in self._fs.get_file_info(selector) if (claim := self._claim(info.path)) is not None]

    def _claim(self, path: str) -> Claim | None:
        if not path.endswith(".json") or path.rpartition("/")[2].startswith("."):
            return None
        try:
            with self._fs.open_input_file(path) as file:
                return msgspec.json.decode(file.read(), type=Claim)
        except FileNotFoundError:  # its owner took it away meanwhile
            return None

    async def _ask(self, question: Any) -> Any:
        """In a thread, one at a time: what hangs there must not be overtaken by what is newer."""
        if self._call is not None and not self._call.done():
            raise Retryable("the archive does not answer")
        self._call = asyncio.ensure_future(asyncio.to_thread(question))
        self._call.add_done_callback(_hear)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.shield(self._call)
        except (OSError, msgspec.MsgspecError) as exc:  # a TimeoutError is an OSError
            raise Retryable(f"the archive: {exc or 'no answer'}") from exc


class RedisClaims:
    """A field for each claim, in one hash."""

    name = "Redis"

    def __init__(self, redis: Redis, node: int) -> None:
        self._redis, self._key = redis, keys.recorders(node)

    async def put(self, claim: Claim) -> None:
        """As `Store` has it."""
        await self._ask("HSET", self._key, claim.name, msgspec.json.encode(claim))

    async def claims(self) -> list[Claim]:
        """As `Store` has it."""
        found = await self._ask("HVALS", self._key)
        try:
            return [msgspec.json.decode(wire, type=Claim) for wire in found]
        except (msgspec.MsgspecError, TypeError) as exc:
            raise Retryable(f"Redis: {self._key} holds no claims: {exc}") from exc

    async def remove(self, claim: Claim) -> None:
        """As `Store` has it."""
        await self._ask("HDEL", self._key, claim.name)

    async def _ask(self, *command: Any) -> Any:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._redis.execute_command(*command)
        except (RedisError, OSError) as exc:
            raise Retryable(f"Redis: {exc or 'no answer'}") from exc


def _hear(call: "asyncio.Future[Any]") -> None:
    """An error that comes after nobody waits any more is no news."""
    if not call.cancelled():
        call.exception()
