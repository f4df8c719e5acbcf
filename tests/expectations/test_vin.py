"""Both implementations of the VIN rule agree."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from expectations._rows import is_iso_3779
from manifold.contracts.names import is_iso_3779_vin, vin_check_digit

pytestmark = pytest.mark.slow

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


def test_both_vin_checks_agree_on_every_check_digit_and_odd_name(spark: SparkSession) -> None:
    vins = [*FILLED, *RIGHT, *ODD]
    frame = spark.createDataFrame([*((vin,) for vin in vins), (None,)], "vin string").select("vin", is_iso_3779(sf.col("vin")))

    found = dict(map(tuple, frame.collect()))

    assert all(is_iso_3779_vin(vin) for vin in RIGHT)
    assert found == {vin: is_iso_3779_vin(vin) for vin in vins} | {None: True}
