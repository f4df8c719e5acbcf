"""Sealing, the key ring and the day keys."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from manifold.contracts.errors import SettingsError
from manifold.contracts.seq import first_seq_at
from manifold.lake.day_keys import DayKeys
from manifold.lake.key_ring import KeyIsGone, KeyRing, key_ring, new_key_line, read_keys
from manifold.lake.sealing import MAGIC, Broken, key_id_of, parts_of
from manifold.settings import load_settings

DAYS = [first_seq_at(datetime(2026, 3, day, 12, tzinfo=UTC)) for day in (1, 2, 3)]


def ring(*names: str) -> KeyRing:
    return KeyRing(read_keys("\n".join(new_key_line(name) for name in names), "test"))


def day_keys(tmp_path: Path, with_ring: KeyRing) -> DayKeys:
    return DayKeys(tmp_path.as_uri(), with_ring)


@given(plain=st.binary(max_size=300), damage=st.integers(min_value=0), bit=st.integers(0, 7))
def test_sealed_bytes_open_unchanged_and_damaged_ones_do_not_open(
    tmp_path_factory: pytest.TempPathFactory, plain: bytes, damage: int, bit: int
) -> None:
    keys = day_keys(tmp_path_factory.mktemp("keys"), ring("a"))
    sealed = keys.seal(plain, seq=DAYS[0])
    assert keys.open(sealed, seq=DAYS[0]) == plain
    assert len(plain) < 8 or plain not in parts_of(sealed).ciphertext
    broken = bytearray(sealed)
    broken[damage % len(sealed)] ^= 1 << bit
    with pytest.raises((Broken, KeyIsGone)):
        keys.open(bytes(broken), seq=DAYS[0])
    with pytest.raises((Broken, KeyIsGone)):
        keys.open(sealed[: damage % len(sealed)], seq=DAYS[0])


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda rest: MAGIC + rest))
def test_bytes_that_were_never_sealed_are_refused(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    keys = day_keys(tmp_path_factory.mktemp("keys"), ring("a"))
    with pytest.raises((Broken, KeyIsGone)):
        keys.open(raw, seq=DAYS[0])


def test_a_message_cannot_be_passed_off_as_another(tmp_path: Path) -> None:
    keys = day_keys(tmp_path, ring("a"))
    sealed = keys.seal(b"plain", seq=DAYS[0])
    with pytest.raises(Broken, match="of another message"):
        keys.open(sealed, seq=DAYS[0] + 1)
    assert keys.seal(b"plain", seq=DAYS[0]) != sealed


def test_a_lost_key_loses_exactly_its_day(tmp_path: Path) -> None:
    both = ring("a")
    sealed = {seq: day_keys(tmp_path, both).seal(b"of %d" % seq, seq=seq) for seq in DAYS}
    ids = [key.key_id for key in day_keys(tmp_path, both).wrapped()]
    assert [key_id[:10] for key_id in ids] == ["2026-03-01", "2026-03-02", "2026-03-03"]
    assert [key_id_of(sealed[seq]) for seq in DAYS] == ids
    next(tmp_path.rglob(f"{ids[1]}.json")).unlink()
    left = day_keys(tmp_path, both)
    assert [left.open(sealed[seq], seq=seq) for seq in (DAYS[0], DAYS[2])] == [b"of %d" % DAYS[0], b"of %d" % DAYS[2]]
    with pytest.raises(KeyIsGone, match=ids[1]):
        left.open(sealed[DAYS[1]], seq=DAYS[1])


def test_processes_share_the_key_of_a_day(tmp_path: Path) -> None:
    both = ring("a")
    first, second = day_keys(tmp_path, both), day_keys(tmp_path, both)
    assert second.open(first.seal(b"x", seq=DAYS[0]), seq=DAYS[0]) == b"x"
    second.seal(b"y", seq=DAYS[0])
    assert len(list(first.wrapped())) == 1


def test_rotation_rewraps_keys_and_touches_no_signal(tmp_path: Path) -> None:
    old = ring("a")
    sealed = [day_keys(tmp_path, old).seal(b"x", seq=seq) for seq in DAYS]
    lines = [new_key_line("b")]
    both = KeyRing(read_keys("\n".join(lines), "test") | old._keys)
    assert day_keys(tmp_path, both).rotate() == (3, [])
    assert day_keys(tmp_path, both).rotate() == (0, [])
    new = KeyRing(read_keys("\n".join(lines), "test"))
    assert [day_keys(tmp_path, new).open(each, seq=seq) for each, seq in zip(sealed, DAYS, strict=True)] == [b"x"] * 3
    with pytest.raises(KeyIsGone, match="no key b"):
        day_keys(tmp_path, old).open(sealed[0], seq=DAYS[0])
    assert day_keys(tmp_path, ring("c")).rotate() == (0, [key.key_id for key in day_keys(tmp_path, new).wrapped()])


def test_a_ring_with_another_key_under_the_same_id_opens_nothing(tmp_path: Path) -> None:
    sealed = day_keys(tmp_path, ring("a")).seal(b"x", seq=DAYS[0])
    other = day_keys(tmp_path, ring("a"))
    with pytest.raises(KeyIsGone, match="another key"):
        other.open(sealed, seq=DAYS[0])
    assert other.open(other.seal(b"y", seq=DAYS[0]), seq=DAYS[0]) == b"y"  # under a new day key


@pytest.mark.parametrize(
    "text",
    ["a", "a:", "a:AAAA", f"a b:{new_key_line('x')[2:]}", "a:" + "A" * 43 + "=", f"{new_key_line('a')},{new_key_line('a')}"],
    ids=["no key", "an empty one", "a short one", "a space in the id", "all zero", "an id twice"],  # keys are random
)
def test_an_invalid_ring_is_refused_without_showing_a_key(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_keys(text, "MANIFOLD_SIGNALS_KEYS")
    assert not any(part and len(part) > 8 and part in str(refused.value) for part in text.replace(",", ":").split(":"))


def test_the_ring_comes_from_settings_or_a_file(tmp_path: Path) -> None:
    lines = [new_key_line("new"), "# of last year", new_key_line("old"), ""]
    file = tmp_path / "ring"
    file.write_text("\n".join(lines))
    assert key_ring(load_settings(signals_keys_file=str(file))).ids == ("new", "old")
    assert key_ring(load_settings(signals_keys=f"{lines[0]}, {lines[2]}")).ids == ("new", "old")
    assert new_key_line("new")[4:] not in repr(key_ring(load_settings(signals_keys_file=str(file))))
    with pytest.raises(SettingsError, match="cannot be read"):
        key_ring(load_settings(signals_keys_file=str(tmp_path / "none")))
    with pytest.raises(SettingsError, match="no key ring"):
        DayKeys(tmp_path.as_uri(), key_ring(load_settings(home=tmp_path / "home"))).seal(b"x", seq=DAYS[0])


def test_a_lost_key_is_looked_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = ring("a")
    sealed = [day_keys(tmp_path, both).seal(b"x", seq=DAYS[0] + n) for n in range(3)]
    for file in tmp_path.rglob("*.json"):
        file.unlink()
    keys, looked = day_keys(tmp_path, both), list[str]()
    load = keys._load

    def counted(key_id: str) -> AESGCM:
        looked.append(key_id)
        return load(key_id)

    monkeypatch.setattr(keys, "_load", counted)
    for n, each in enumerate(sealed):
        with pytest.raises(KeyIsGone, match="is gone"):
            keys.open(each, seq=DAYS[0] + n)
    assert len(looked) == 1


@pytest.mark.parametrize("damage", [b"", b'{"key_id": "', b'{"key_id": "2026-01-01.000000000000"}', b"\xff"])
def test_rotation_names_a_key_whose_file_is_damaged(tmp_path: Path, damage: bytes) -> None:
    """Otherwise an operator would take the old key out of the ring, and a copy of the file could not be opened either."""
    old, new = ring("a"), ring("b", "a")
    day_keys(tmp_path, old).seal(b"payload", seq=DAYS[0])
    (stored,) = (tmp_path / "keys").rglob("*.json")
    stored.write_bytes(damage)

    assert day_keys(tmp_path, new).rotate() == (0, [stored.stem])
