"""What Airflow does for campaigns: orders of its users, approvals, lists of targets, and the proof.

It promises that every order names the person who gave it, and that a task that is run again orders nothing twice. It needs the
API, and where a list is resolved or a campaign proved, the lake and the recorder.
"""
