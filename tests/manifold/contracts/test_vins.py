"""Batch checks of VINs by their bytes agree with the single check of the contracts."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifold.contracts.names import is_iso_3779_vin, vin_check_digit
from manifold.contracts.vins import VINS_PER_BATCH, are_iso_3779

STEMS = (
    "1HGCM826_3A004352",
    "WVWZZZ1J_XW000001",
    "ABCDEFGH_JKLMNPRS",
    "TUVWXYZ0_12345678",
    "99999999_00000000",
    "KMHEC4A4_DA076543",
)
FILLED = [stem.replace("_", digit) for stem in STEMS for digit in "0123456789X"]
RIGHT = [stem.replace("_", vin_check_digit(stem.replace("_", "0"))) for stem in STEMS]
ODD = [
    "",
    "TEST-1",
    "sim-000001",
    "1HGCM82633A00435",
    "1HGCM82633A0043522",
    "1hgcm82633a004352",
    "IOQ00000000000000",
    "00000000000000000",
    "1HGCM82633A00435\n",
    "1HGCM82633A004352\n",
]
ALL = [*FILLED, *RIGHT, *ODD, "ä" * 5, "x" * 64, "x" * 65, "a+b", "a b", "1HGCM82633A00435ä"]


def agree(vins: list[str]) -> None:
    found = pa.array(vins, pa.string())
    assert are_iso_3779(found).tolist() == [is_iso_3779_vin(vin) for vin in vins]


def test_right_check_digits_make_valid_vins() -> None:
    assert are_iso_3779(pa.array(RIGHT)).all()


def test_more_vins_than_are_checked_at_a_time_keep_their_order() -> None:
    agree((ALL * (2 * VINS_PER_BATCH // len(ALL) + 1))[: 2 * VINS_PER_BATCH + 1])


@pytest.mark.parametrize("vins", [ALL, FILLED, RIGHT, [], ["x"]], ids=["all", "of one length", "right", "none", "one"])
def test_batch_and_single_vin_checks_agree(vins: list[str]) -> None:
    agree(vins)


@given(st.lists(st.one_of(st.sampled_from(ALL), st.text(max_size=20))))
def test_neighbouring_values_do_not_affect_a_vin(vins: list[str]) -> None:
    agree([vin for vin in vins if vin.isprintable()])


def test_an_array_slice_is_checked_by_its_own_bytes() -> None:
    part = pa.array(ALL)[3:-2]
    assert are_iso_3779(part).tolist() == [is_iso_3779_vin(vin) for vin in ALL[3:-2]]
