"""What the DAGs make, by the names under which Airflow shows it and starts other DAGs from it."""

LAKE = "lake"  # a run has been published: the tables have new rows
QUEUES = "queues"  # what was pending in the lake has been offered to the queues
REBUILT = "rebuilt"  # the queues were filled again from the lake
