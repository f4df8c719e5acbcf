"""Airflow plugins: the pages of quality reports and campaigns, the deadline of late runs, and the timetable of backfills.

Each file registers one of them. Every task of Airflow loads all plugins, so loading a plugin must not send a request to any
server. Plugins import contracts, settings, the declarations of `dags/`, and the reader of the reports.
"""
