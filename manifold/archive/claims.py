"""Claims to a recorder number, or to be the campaigner, one per epoch of a folder, in the archive and in Redis."""

import asyncio
from typing import Any, Protocol

import msgspec
from pyarrow import fs as pafs
from redis.asyncio import Redis
from redis.exceptions import RedisError

from manifold.archive.lease_holders import FOLDER
from manifold.contracts import keys
from manifold.contracts.errors import Retryable, message_of
from manifold.contracts.storage import S3
from manifold.lake.storage import open_storage, write_bytes

ANSWER_S = 5.0  # a store that takes longer counts as unavailable


class Claim(msgspec.Struct, frozen=True):
    """A recorder's claim to its number, written only by its own folder. Instants are Unix ms by its own clock.

    Each epoch of a place has its own claim, so that a late removal of an expired claim does not remove its successor.
    """

    place: str
    journal: str
    where: str  # for operators: host, folder, process
    epoch: int  # greater than in all earlier claims; the greatest epoch counts
    after_ms: int  # it assigns no seq up to here, because others did
    upto_ms: int  # it assigns no later seq without renewing this claim first ...
    until_ms: int  # ... unless no store is reachable; then none after this
    released: bool = False  # it has ended, and assigned none after upto_ms

    @property
    def name(self) -> str:
        """The key under which stores keep the claim."""
        return f"{self.place}.{self.epoch}"


class Store(Protocol):
    """Stores the claims of one number. Once `put` returns, every later `claims` call of any process includes that claim.

    Raises:
        Retryable: from every method: the store is unavailable; a `put` may have taken effect.
    """

    async def put(self, claim: Claim) -> None:
        """Write this process's claim, replacing its earlier one of the same epoch."""

    async def claims(self) -> list[Claim]:
        """Read all claims."""

    async def remove(self, claim: Claim) -> None:
        """Remove a claim, even if its place has changed it since."""


class ArchiveClaims:
    """Stores each claim as a small file in `<archive>/recorders/<node>/`."""

    name = "the archive"

    def __init__(self, url: str, s3: S3, node: int | str) -> None:
        self._fs, self._root = open_storage(url, s3)
        self._folder = f"{FOLDER}/{node}"
        self._call: asyncio.Future[Any] | None = None

    async def put(self, claim: Claim) -> None:
        """See `Store`."""
        wire = msgspec.json.encode(claim)
        await self._ask(lambda: write_bytes(self._fs, self._root, self._path(claim), wire))

    async def claims(self) -> list[Claim]:
        """See `Store`."""
        found: list[Claim] = await self._ask(self._read)
        return found

    async def remove(self, claim: Claim) -> None:
        """See `Store`."""
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
        except FileNotFoundError:  # removed by its owner meanwhile
            return None

    async def _ask(self, question: Any) -> Any:
        """Run `question` in a thread, one at a time: a newer call must not overtake one that hangs."""
        if self._call is not None and not self._call.done():
            raise Retryable("the archive does not answer")
        self._call = asyncio.ensure_future(asyncio.to_thread(question))
        self._call.add_done_callback(_retrieve_exception)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.shield(self._call)
        except (OSError, msgspec.MsgspecError) as exc:  # a TimeoutError is an OSError
            raise Retryable(f"the archive: {message_of(exc)}") from exc


class RedisClaims:
    """Stores each claim as a field of one hash."""

    name = "Redis"

    def __init__(self, redis: Redis, node: int | str) -> None:
        self._redis, self._key = redis, keys.recorders(node)

    async def put(self, claim: Claim) -> None:
        """See `Store`."""
        await self._ask("HSET", self._key, claim.name, msgspec.json.encode(claim))

    async def claims(self) -> list[Claim]:
        """See `Store`."""
        found = await self._ask("HVALS", self._key)
        try:
            return [msgspec.json.decode(wire, type=Claim) for wire in found]
        except (msgspec.MsgspecError, TypeError) as exc:
            raise Retryable(f"Redis: {self._key} holds no claims: {exc}") from exc

    async def remove(self, claim: Claim) -> None:
        """See `Store`."""
        await self._ask("HDEL", self._key, claim.name)

    async def _ask(self, *command: Any) -> Any:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._redis.execute_command(*command)
        except (RedisError, OSError) as exc:
            raise Retryable(f"Redis: {message_of(exc)}") from exc


def _retrieve_exception(call: "asyncio.Future[Any]") -> None:
    """Retrieve the exception of an abandoned call so that asyncio does not warn."""
    if not call.cancelled():
        call.exception()
