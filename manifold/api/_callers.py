"""Who calls: named tokens with rights from a secret file, beside the one token of all services."""

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import structlog
from fastapi import Header, HTTPException, Request

from manifold.contracts.errors import Permanent
from manifold.runtime import secret_files
from manifold.runtime.http import has_token
from manifold.settings import Settings

_NAME, _SHA256 = re.compile(r"[A-Za-z0-9._@-]{1,64}"), re.compile(r"[0-9a-f]{64}")
_UNREADABLE = (0, 0, 0)  # version of a file that cannot be read
_OF_NOTHING = hashlib.sha256(b"").hexdigest()
_FORM = "write <name>:<SHA-256 of the token, 64 lower-case hexadecimal digits>:<rights>"

log = structlog.get_logger(__name__)


class Right(StrEnum):
    """What a caller may do."""

    READ = "read"
    PROPOSE = "propose"  # propose and amend
    APPROVE = "approve"  # let a campaign go on: approve, refuse, pass, resume, retry
    BRAKE = "brake"  # stop it: pause, cancel
    DELEGATE = "delegate"  # order for its own users, whom the header On-Behalf-Of names
    REWIND = "rewind"  # rewind a compacted queue


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks; `name` is empty for the token of all services, and for no token where none is needed."""

    name: str
    rights: frozenset[Right]


NAMELESS = Caller("", frozenset({Right.READ, Right.REWIND}))
_Tokens = tuple[tuple[bytes, Caller], ...]  # SHA-256 of the token as hex, and whose it is


@dataclass(slots=True)
class Callers:
    """Identifies callers by the tokens that they send. The file is read again when it changes."""

    token: str  # of all services; empty: not needed
    file: Path | None = None
    _tokens: _Tokens = field(default=(), init=False)
    _version: tuple[int, int, int] | None = field(default=None, init=False)  # of the file when it was read

    @classmethod
    def of(cls, settings: Settings) -> "Callers":
        """The callers that the settings name.

        Raises:
            Permanent: the file of named tokens cannot be read, or a line of it is wrong.
        """
        callers = cls(settings.http_token.get_secret_value(), _file_of(settings))
        if problems := callers._reload():
            raise Permanent(f"MANIFOLD_API_TOKENS_FILE: {'; '.join(problems)}")
        return callers

    def identify(self, authorization: str) -> Caller | None:
        """The caller who sends this Authorization header; None if it gives no access. Takes the same time for every token."""
        for problem in self._reload():
            log.error("the file of named tokens is wrong; the token is not valid", problem=problem)
        scheme, _, given = authorization.partition(" ")
        digest = hashlib.sha256(given.strip().encode(errors="surrogateescape")).hexdigest().encode()
        found = None
        for sha256, caller in self._tokens:
            if hmac.compare_digest(sha256, digest):
                found = caller
        if found is not None and scheme.lower() == "bearer":
            return found
        return NAMELESS if has_token(authorization, self.token) else None

    def _reload(self) -> list[str]:
        """Read the file if it has changed; return what is wrong with it. A wrong line adds no token; the other lines do."""
        if self.file is None:
            return []
        try:
            stat = self.file.stat()
            version = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if version == self._version:
                return []
            lines = self.file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as exc:
            is_news, self._tokens, self._version = self._version != _UNREADABLE, (), _UNREADABLE
            return [f"{self.file} cannot be read ({getattr(exc, 'strerror', None) or exc}); name a text file"] if is_news else []
        self._version, problems, tokens = version, [], []
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            read = _token(line.strip())
            if isinstance(read, str):
                problems.append(f"line {number} of {self.file}: {read}")
            else:
                tokens.append(read)
        self._tokens = tuple(tokens)
        return problems


def _file_of(settings: Settings) -> Path | None:
    if settings.api_tokens_file:
        return Path(settings.api_tokens_file)
    generated = secret_files.folder(settings.home) / secret_files.API_TOKENS
    return generated if generated.exists() else None


def _token(line: str) -> tuple[bytes, Caller] | str:
    """The token of a line, or what is wrong with it, which shows nothing that may be a secret."""
    parts = line.split(":")
    if len(parts) != len(("name", "digest", "rights")):
        return f"it has {len(parts)} parts; {_FORM}"
    name, sha256, words = parts
    rights = words.replace(" ", "").split(",")
    if not _NAME.fullmatch(name):
        return f"name {name[:64]!r} must be 1 to 64 letters, digits and . _ @ -; {_FORM}"
    if not _SHA256.fullmatch(sha256) or sha256 == _OF_NOTHING:
        return f"the digest of {name} is none; {_FORM}"
    unknown = [right for right in rights if right not in set(Right)]
    if unknown:
        return f"right {unknown[0][:64]!r} of {name} must be one of {', '.join(Right)}"
    return sha256.encode(), Caller(name, frozenset(map(Right, rights)))


OnBehalfOf = Annotated[
    str, Header(pattern=f"^({_NAME.pattern})?$", description="the user for whom a token with the right `delegate` orders")
]


def needs(right: Right) -> Callable[[Request, OnBehalfOf], Awaitable[Caller]]:
    """Return a dependency that gives the caller, and refuses those without this right.

    If `On-Behalf-Of` names a user, the caller's name becomes `<token>/<user>`, for example `airflow/anna`; that needs the right
    `delegate`.
    """

    async def caller_with_right(request: Request, on_behalf_of: OnBehalfOf = "") -> Caller:
        caller: Caller = request.state.caller
        if on_behalf_of and Right.DELEGATE not in caller.rights:
            raise HTTPException(403, "the header On-Behalf-Of needs a named token with the right delegate; leave it out")
        if right in caller.rights:
            return Caller(f"{caller.name}/{on_behalf_of}", caller.rights) if on_behalf_of else caller
        only = f"the token of {caller.name} has only {', '.join(sorted(caller.rights))}"
        who = only if caller.name else "the token sent, if any, has no name"
        raise HTTPException(403, f"this needs a named token with the right {right}; {who}. See MANIFOLD_API_TOKENS_FILE")

    return caller_with_right
