"""Batch checks of VINs by their bytes agree with the single check of the contracts."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifold.contracts.names import is_iso_3779_vin
from manifold.contracts.vins import are_iso_3779
from tests.expectations.test_vin import FILLED, ODD, RIGHT

ALL = [*FILLED, *RIGHT, *ODD, "ä" * 5, "x" * 64, "x" * 65, "a+b", "a b", "1HGCM82633A00435ä"]


def agree(vins: list[str]) -> None:
    found = pa.array(vins, pa.string())
    assert are_iso_3779(found).tolist() == [is_iso_3779_vin(vin) for vin in vins]


@pytest.mark.parametrize("vins", [ALL, FILLED, RIGHT, [], ["x"]], ids=["all", "of one length", "right", "none", "one"])
def test_batch_and_single_vin_checks_agree(vins: list[str]) -> None:
    agree(vins)


@given(st.lists(st.one_of(st.sampled_from(ALL), st.text(max_size=20))))
def test_neighbouring_values_do_not_affect_a_vin(vins: list[str]) -> None:
    agree([vin for vin in vins if vin.isprintable()])


def test_an_array_slice_is_checked_by_its_own_bytes() -> None:
    part = pa.array(ALL)[3:-2]
    assert are_iso_3779(part).tolist() == [is_iso_3779_vin(vin) for vin in ALL[3:-2]]
