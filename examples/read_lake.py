"""Reads the lake with PyIceberg: the messages of a vehicle, oldest first, and the outcome of each message.

usage: read_lake.py CATALOG_URI WAREHOUSE VIN
"""

import sys

from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo

uri, warehouse, vin = sys.argv[1:]
lake = load_catalog("manifold", type="sql", uri=uri, warehouse=warehouse)


def rows_of(table, *columns):
    return lake.load_table(f"sdv.{table}").scan(EqualTo("vin", vin), columns).to_arrow()


messages = rows_of("sdv_fanout_ids", "vin", "seq", "request_id", "data_id", "ts")
outcomes = rows_of("sdv_fanout_outcomes", "vin", "seq", "outcome", "acknowledged_at")
for row in messages.join(outcomes, ["vin", "seq"], join_type="left outer").sort_by("seq").to_pylist():
    print(row["seq"], row["request_id"], row["data_id"], row["outcome"] or "pending", row["acknowledged_at"] or "-")
