"""When, not what: each file here declares one DAG; what it runs is a stage of `pipelines/`.

It promises that a run can be repeated, and that a DAG's page says what it reads, what it writes, and what to do when it fails.
Parsing a file asks no server and reads no clock. It imports contracts, and nothing that carries Spark.
"""
