"""What Airflow looks for among its plugins: the page of the quality reports, when a run is late, the days of a backfill.

Each file registers one thing. It promises that loading it asks no server, since every task of Airflow loads all plugins. It
imports contracts, what `dags/` declares, and the reader of the reports.
"""
