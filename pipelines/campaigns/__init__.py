"""Tasks that Airflow runs for campaigns: its users' orders, approvals, lists of targets, and proofs.

Every order names the person who gave it, and a task that is run again does not repeat its order. Orders and
approvals need the API. Resolving a list and proving a campaign need the lake; recording a list also needs the archive, the
recorder and the broker.
"""
