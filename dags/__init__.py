"""When, not what: each file here declares one DAG; what it runs is a stage of `pipelines/`."""
