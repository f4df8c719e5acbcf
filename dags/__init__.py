"""Airflow DAGs: each file declares one DAG. A DAG says when work runs; the work itself is a stage of `pipelines/`.

Guarantees: every run can be repeated, and a DAG's page says what it reads, what it writes, and what to do when it fails. Parsing
a DAG file queries no server and reads no clock. The files import contracts, and no module that imports Spark.
"""
