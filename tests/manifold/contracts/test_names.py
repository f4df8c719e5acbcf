"""Names: which strings may be a VIN, checked one by one or in a batch."""

import pytest

from manifold.contracts.names import are_vins, is_vin


def test_single_and_batch_checks_agree_on_every_character() -> None:
    good = [chr(code) for code in range(0x250) if is_vin(chr(code))]
    assert good == [chr(code) for code in range(0x21, 0x7F) if chr(code) not in "+#/"]
    assert [chr(code) for code in range(0x250) if are_vins([chr(code)])] == good


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(["V1", ""], id="an empty name"),
        pytest.param(["V1", 7], id="a number"),
        pytest.param(["V1", ["V2"]], id="a list"),
        pytest.param(["V1\nV2"], id="two names in one"),
        pytest.param(["V1\nV2", ""], id="two names in one with a matching count"),
        pytest.param(["x" * 65], id="too long"),
    ],
)
def test_one_bad_name_among_many_is_found(texts: list[object]) -> None:
    assert not are_vins(["V0", *texts])


def test_many_good_names_pass_together() -> None:
    assert are_vins(["V1", "x" * 64, "~"])
    assert are_vins([])
