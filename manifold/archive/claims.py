"""Claims to a recorder number or to the role of the campaigner, and their stores: the archive and Redis."""

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

RESPONSE_TIMEOUT_S = 5.0  # a store that takes longer counts as unavailable


class Claim(msgspec.Struct, frozen=True):
    """A recorder's claim to its number. Only the process that has locked the journal folder writes it.

    All instants are in Unix ms by the recorder's clock. Each time a folder takes the number, it writes a new claim with a new
    epoch and thus a new name, so that a late removal of an expired claim cannot remove the new one.
    """

    place: str  # `JournalFolder.name`
    journal: str  # `JournalFolder.journal`
    where: str  # host, folder and process, for operators
    epoch: int  # greater than in all earlier claims; the claim with the greatest epoch is valid
    after_ms: int  # the recorder assigns only seqs after this instant, because other recorders may have assigned earlier ones
    upto_ms: int  # the recorder renews the claim before it assigns a seq after this instant
    until_ms: int  # if the recorder cannot renew the claim because no store is available, it assigns seqs up to this instant
    released: bool = False  # whether the recorder has ended; then it has assigned no seq after `upto_ms`

    @property
    def name(self) -> str:
        """The key under which stores keep the claim."""
        return f"{self.place}.{self.epoch}"


class Store(Protocol):
    """Stores the claims to one number. After `put` returns, every call of `claims` in any process includes that claim.

    Raises:
        Retryable: from every method, if the store is unavailable. A `put` may have taken effect nevertheless.
    """

    async def put(self, claim: Claim) -> None:
        """Write this process's claim. It replaces the process's earlier claim with the same epoch."""

    async def claims(self) -> list[Claim]:
        """Read all claims."""

    async def remove(self, claim: Claim) -> None:
        """Remove the claim with the name of `claim`, even if its content has changed."""


class ArchiveClaims:
    """Stores each claim as a small file in `<archive>/recorders/<node>/`."""

    name = "the archive"

    def __init__(self, url: str, s3: S3, node: int | str) -> None:
        self._fs, self._root = open_storage(url, s3)
        self._folder = f"{FOLDER}/{node}"
        self._pending: asyncio.Future[Any] | None = None  # the newest call of the storage, which may have ended

    async def put(self, claim: Claim) -> None:
        """Write the file of this process's claim, or replace the file."""
        content = msgspec.json.encode(claim)
        await self._call_storage(lambda: write_bytes(self._fs, self._root, self._path(claim), content))

    async def claims(self) -> list[Claim]:
        """Read the claims in all files of the folder."""
        claims: list[Claim] = await self._call_storage(self._read_all)
        return claims

    async def remove(self, claim: Claim) -> None:
        """Delete the file of the claim."""
        await self._call_storage(lambda: self._fs.delete_file(f"{self._root}/{self._path(claim)}"))

    def _path(self, claim: Claim) -> str:
        return f"{self._folder}/{claim.name}.json"

    def _read_all(self) -> list[Claim]:
        selector = pafs.FileSelector(f"{self._root}/{self._folder}", allow_not_found=True)
        claims = [self._read_claim(info.path) for info in self._fs.get_file_info(selector)]
        return [claim for claim in claims if claim is not None]

    def _read_claim(self, path: str) -> Claim | None:
        """Read the claim in this file; None if the file is not named like a claim, or was removed after it was listed."""
        name = path.rpartition("/")[2]
        if not name.endswith(".json") or name.startswith("."):
            return None
        try:
            with self._fs.open_input_file(path) as file:
                return msgspec.json.decode(file.read(), type=Claim)
        except FileNotFoundError:
            return None

    async def _call_storage(self, function: Any) -> Any:
        """Run `function` in a thread, and return its result.

        Raises `Retryable` if storage fails, or takes longer than `RESPONSE_TIMEOUT_S`. After that time the thread continues, and
        until it ends, `Retryable` is raised at once instead of starting another call, which could overtake the earlier one.
        """
        if self._pending is not None and not self._pending.done():
            raise Retryable("the archive does not answer")
        self._pending = asyncio.ensure_future(asyncio.to_thread(function))
        self._pending.add_done_callback(_retrieve_exception)
        try:
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                return await asyncio.shield(self._pending)
        except (OSError, msgspec.MsgspecError) as exc:  # a TimeoutError is an OSError
            raise Retryable(f"the archive: {message_of(exc)}") from exc


class RedisClaims:
    """Stores the claims to a number as the fields of a hash."""

    name = "Redis"

    def __init__(self, redis: Redis, node: int | str) -> None:
        self._redis, self._key = redis, keys.recorders(node)

    async def put(self, claim: Claim) -> None:
        """Write the field of this process's claim, or replace it."""
        await self._execute("HSET", self._key, claim.name, msgspec.json.encode(claim))

    async def claims(self) -> list[Claim]:
        """Read the claims in all fields."""
        values = await self._execute("HVALS", self._key)
        try:
            return [msgspec.json.decode(value, type=Claim) for value in values]
        except (msgspec.MsgspecError, TypeError) as exc:
            raise Retryable(f"Redis: {self._key} holds no claims: {exc}") from exc

    async def remove(self, claim: Claim) -> None:
        """Delete the field of the claim."""
        await self._execute("HDEL", self._key, claim.name)

    async def _execute(self, *command: Any) -> Any:
        """Execute a Redis command; raises `Retryable` if Redis fails or does not respond in time."""
        try:
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                return await self._redis.execute_command(*command)
        except (RedisError, OSError) as exc:
            raise Retryable(f"Redis: {message_of(exc)}") from exc


def _retrieve_exception(call: "asyncio.Future[Any]") -> None:
    """Retrieve the exception of a call for which nobody waits any more, because asyncio would otherwise log a warning."""
    if not call.cancelled():
        call.exception()
