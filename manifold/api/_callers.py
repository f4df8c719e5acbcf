"""Identifies callers by their tokens: named tokens with rights from a secret file, and the token that all services share."""

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
_UNREADABLE = (0, 0, 0)  # the version that stands for a file that cannot be read
_SHA256_OF_EMPTY_TOKEN = hashlib.sha256(b"").hexdigest()
_PARTS_OF_LINE = 3  # name, digest and rights
_LINE_REMEDY = "write <name>:<SHA-256 of the token, 64 lower-case hexadecimal digits>:<rights>"

log = structlog.get_logger(__name__)


class Right(StrEnum):
    """What a caller may do."""

    READ = "read"
    PROPOSE = "propose"  # propose and amend campaigns
    APPROVE = "approve"  # decide whether a campaign continues: approve, refuse, pass, resume, retry
    BRAKE = "brake"  # stop a campaign: pause, cancel
    DELEGATE = "delegate"  # give orders for a user of the caller, whom the header On-Behalf-Of names
    REWIND = "rewind"  # rewind a compacted queue


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request."""

    name: str  # the name of the token; empty for the shared token, and without a token where none is required
    rights: frozenset[Right]


NAMELESS = Caller("", frozenset({Right.READ, Right.REWIND}))
_Tokens = tuple[tuple[bytes, Caller], ...]  # for each token, its SHA-256 in hexadecimal and its caller


@dataclass(slots=True)
class Callers:
    """Identifies callers by the tokens that they send. The file of named tokens is read again when it changes."""

    token: str  # the token that all services share; empty: none is required
    file: Path | None = None  # the file of named tokens
    _tokens: _Tokens = field(default=(), init=False)
    # mtime (ns), inode and size of the file that was read; None: not read yet
    _version: tuple[int, int, int] | None = field(default=None, init=False)

    @classmethod
    def of(cls, settings: Settings) -> "Callers":
        """Return the callers that the settings configure.

        Raises:
            Permanent: the file of named tokens cannot be read, or has an invalid line.
        """
        callers = cls(settings.http_token.get_secret_value(), _named_tokens_file(settings))
        problems = callers._reload()
        if problems:
            raise Permanent(f"MANIFOLD_API_TOKENS_FILE: {'; '.join(problems)}")
        return callers

    def identify(self, authorization: str) -> Caller | None:
        """Return the caller with this Authorization header, or None if the header gives no access.

        The call takes the same time for every token, so that its duration reveals nothing about valid tokens.
        """
        for problem in self._reload():
            log.error("api tokens file has a problem; the tokens concerned are not accepted", problem=problem)
        scheme, _, token = authorization.partition(" ")
        token_sha256 = hashlib.sha256(token.strip().encode(errors="surrogateescape")).hexdigest().encode()
        named_caller = None
        for sha256, caller in self._tokens:
            if hmac.compare_digest(sha256, token_sha256):
                named_caller = caller
        if named_caller is not None and scheme.lower() == "bearer":
            return named_caller
        return NAMELESS if has_token(authorization, self.token) else None

    def _reload(self) -> list[str]:
        """Read the file of named tokens if it has changed, and return its problems.

        An invalid line is skipped. If the file cannot be read, no named token is valid, and that problem is returned only once.
        """
        if self.file is None:
            return []
        try:
            stat = self.file.stat()
            version = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if version == self._version:
                return []
            lines = self.file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as exc:
            was_unreadable = self._version == _UNREADABLE
            self._tokens = ()
            self._version = _UNREADABLE
            if was_unreadable:  # the problem was returned before
                return []
            return [f"{self.file} cannot be read ({getattr(exc, 'strerror', None) or exc}); name a text file"]
        self._version = version
        self._tokens, problems = _parse_lines(lines)
        return [f"line {number} of {self.file}: {problem}" for number, problem in problems]


def _named_tokens_file(settings: Settings) -> Path | None:
    """Return the file of named tokens: the one in the settings, else the generated one; None if there is neither."""
    if settings.api_tokens_file:
        return Path(settings.api_tokens_file)
    generated = secret_files.folder(settings.home) / secret_files.API_TOKENS
    return generated if generated.exists() else None


def _parse_lines(lines: list[str]) -> tuple[_Tokens, list[tuple[int, str]]]:
    """Return the tokens in the lines, and (line number, problem) of each invalid line. Empty lines and comments are skipped."""
    tokens: list[tuple[bytes, Caller]] = []
    problems: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        parsed = _parse_line(line.strip())
        if isinstance(parsed, str):
            problems.append((number, parsed))
        else:
            tokens.append(parsed)
    return tuple(tokens), problems


def _parse_line(line: str) -> tuple[bytes, Caller] | str:
    """Return the digest and caller in a line, or the problem of the line. A problem quotes nothing that may be a secret."""
    parts = line.split(":")
    if len(parts) != _PARTS_OF_LINE:
        return f"it has {len(parts)} parts; {_LINE_REMEDY}"
    name, sha256, rights_text = parts
    rights = rights_text.replace(" ", "").split(",")
    if not _NAME.fullmatch(name):
        return f"name {name[:64]!r} must be 1 to 64 letters, digits and . _ @ -; {_LINE_REMEDY}"
    if not _SHA256.fullmatch(sha256) or sha256 == _SHA256_OF_EMPTY_TOKEN:
        return f"the digest of {name} is none; {_LINE_REMEDY}"
    unknown = [right for right in rights if right not in set(Right)]
    if unknown:
        return f"right {unknown[0][:64]!r} of {name} must be one of {', '.join(Right)}"
    return sha256.encode(), Caller(name, frozenset(map(Right, rights)))


OnBehalfOf = Annotated[
    str, Header(pattern=f"^({_NAME.pattern})?$", description="the user for whom a token with the right `delegate` orders")
]


def needs(right: Right) -> Callable[[Request, OnBehalfOf], Awaitable[Caller]]:
    """Return a FastAPI dependency that returns the caller, or responds 403 to a caller without this right.

    If the header `On-Behalf-Of` names a user, the caller needs the right `delegate`, and the returned name is `<token>/<user>`,
    for example `airflow/anna`.
    """

    async def caller_with_right(request: Request, on_behalf_of: OnBehalfOf = "") -> Caller:
        caller: Caller = request.state.caller  # set by the middleware, which has refused requests without a caller
        if on_behalf_of and Right.DELEGATE not in caller.rights:
            raise HTTPException(403, "the header On-Behalf-Of needs a named token with the right delegate; leave it out")
        if right in caller.rights:
            return Caller(f"{caller.name}/{on_behalf_of}", caller.rights) if on_behalf_of else caller
        if caller.name:
            reason = f"the token of {caller.name} has only {', '.join(sorted(caller.rights))}"
        else:
            reason = "the token sent, if any, has no name"
        raise HTTPException(403, f"this needs a named token with the right {right}; {reason}. See MANIFOLD_API_TOKENS_FILE")

    return caller_with_right
