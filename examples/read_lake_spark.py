"""Reads the lake with Spark: the number of messages for each day and outcome.

usage: spark-submit --driver-class-path '.tools/jars/*' read_lake_spark.py CATALOG_URI WAREHOUSE
"""

import sys

from pyspark.sql import SparkSession

uri, warehouse = sys.argv[1:]
settings = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalog.manifold": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.manifold.type": "jdbc",
    "spark.sql.catalog.manifold.jdbc.schema-version": "V1",
    "spark.sql.catalog.manifold.uri": uri.replace("sqlite:///", "jdbc:sqlite:"),
    "spark.sql.catalog.manifold.warehouse": warehouse,
}
spark = SparkSession.builder.config(map=settings).getOrCreate()
counted = spark.sql("""
    SELECT to_date(ids.ts) AS day, coalesce(outcome, 'pending') AS outcome, count(*) AS messages
    FROM manifold.sdv.sdv_fanout_ids AS ids LEFT JOIN manifold.sdv.sdv_fanout_outcomes USING (vin, seq)
    GROUP BY 1, 2 ORDER BY 1, 2
""")
for row in counted.collect():
    print(row.day, row.outcome, row.messages)
