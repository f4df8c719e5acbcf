"""Redis keys: all keys of an owner share a cluster slot, whatever its name."""

from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from manifold.contracts import keys

VINS = st.text(st.sampled_from([chr(code) for code in range(0x21, 0x7F) if chr(code) not in "+#/"]), min_size=1, max_size=64)
BRACED = st.text(st.sampled_from("{}V"), min_size=1, max_size=6)


@given(VINS | BRACED)
def test_all_keys_of_an_owner_share_a_slot(vin: str) -> None:
    assert len({key_slot(key.encode()) for key in [*keys.owner_keys(vin), *keys.ecq_keys(vin)]}) == 1


@given(VINS | BRACED)
def test_a_key_names_its_owner(vin: str) -> None:
    assert keys.owner_of(keys.pending(vin)) == (vin, "pending")
    assert [keys.owner_of(key)[0] for key in keys.owner_keys(vin)] == [vin] * 7
    assert [keys.owner_of(key)[0] for key in keys.ecq_keys(vin)] == [vin] * 8
    assert keys.owner_of(keys.ecq_messages(vin)) == (vin, "ecq:messages")
    assert {keys.pending(vin), keys.inflight(vin), keys.presence(vin), keys.done(vin)} < set(keys.owner_keys(vin))
