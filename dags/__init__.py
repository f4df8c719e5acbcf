"""When, not what: each file here declares one DAG; what it runs is a module of `pipelines/`."""
