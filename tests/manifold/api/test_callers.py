"""Who calls the API: named tokens, their rights, and the file that has them."""

import hashlib
from pathlib import Path

import pytest

from manifold.api._callers import NAMELESS, Caller, Callers, Right
from manifold.contracts.errors import Permanent
from manifold.settings import Settings


def line(name: str, token: str, rights: str) -> str:
    return f"{name}:{hashlib.sha256(token.encode()).hexdigest()}:{rights}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text("# people\n\n" + line("anna", "of-anna", "read,propose") + line("ben@ops", "of-ben", "read, approve, brake"))
    return path


def callers(file: Path, token: str = "") -> Callers:
    return Callers.of(Settings(api_tokens_file=str(file), http_token=token))


def test_a_token_has_the_name_and_the_rights_of_its_line(file: Path) -> None:
    found = callers(file, "of-all")

    assert found.identify("Bearer of-anna") == Caller("anna", frozenset({Right.READ, Right.PROPOSE}))
    assert found.identify("bearer of-ben") == Caller("ben@ops", frozenset({Right.READ, Right.APPROVE, Right.BRAKE}))
    assert found.identify("Bearer of-all") == NAMELESS


@pytest.mark.parametrize(
    "shown", ["", "Bearer ", "Bearer of-ann", "Bearer of-anna2", "Basic of-anna", "of-anna", "Bearer OF-ANNA", "Bearer \udcff"]
)
def test_another_token_is_nobodys(file: Path, shown: str) -> None:
    assert callers(file, "of-all").identify(shown) is None


def test_without_a_token_for_all_who_shows_none_may_read_and_has_no_name(file: Path) -> None:
    assert callers(file).identify("") == NAMELESS
    assert (NAMELESS.name, NAMELESS.rights) == ("", frozenset({Right.READ, Right.REWIND}))


def test_a_changed_file_is_read_again(file: Path) -> None:
    found = callers(file, "of-all")
    file.write_text(line("carl", "of-carl", "brake"))

    assert found.identify("Bearer of-carl") == Caller("carl", frozenset({Right.BRAKE}))
    assert found.identify("Bearer of-anna") is None, "a token that was taken out is not valid any more"


def test_a_wrong_line_gives_no_token_and_leaves_the_others(file: Path) -> None:
    found = callers(file, "of-all")
    file.write_text(line("anna", "of-anna", "read,everything") + line("ben", "of-ben", "read"))

    assert found.identify("Bearer of-anna") is None
    assert found.identify("Bearer of-ben") == Caller("ben", frozenset({Right.READ}))


def test_a_file_that_has_gone_gives_nobody_a_name(file: Path) -> None:
    found = callers(file, "of-all")
    file.unlink()

    assert found.identify("Bearer of-anna") is None
    assert found.identify("Bearer of-all") == NAMELESS


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("anna:1234:read", "line 1 of {file}: the digest of anna is none; write <name>:<SHA-256"),
        (line("anna", "", "read"), "the digest of anna is none"),
        (line("two words", "t", "read"), "name 'two words' must be 1 to 64 letters, digits and . _ @ -"),
        (line("campaigner/0", "t", "read"), "name 'campaigner/0' must be"),
        (line("anna", "t", "read,all"), "right 'all' of anna must be one of read, propose, approve, brake, rewind"),
        (line("anna", "t", ""), "right '' of anna must be one of"),
        ("of-anna", "it has 1 parts; write <name>:<SHA-256"),
    ],
)
def test_a_wrong_file_is_refused_at_the_start(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)

    with pytest.raises(Permanent) as refused:
        callers(file)
    assert problem.format(file=file) in str(refused.value)
    assert not [secret for secret in (hashlib.sha256(b"t").hexdigest(), "of-anna") if secret in str(refused.value)]


def test_a_missing_file_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match=r"MANIFOLD_API_TOKENS_FILE: .*nothing cannot be read .*; name a text file"):
        callers(tmp_path / "nothing")
