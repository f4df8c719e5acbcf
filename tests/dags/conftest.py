"""Airflow reads its configuration when it is imported: here, before any test of this folder imports it."""

import os
import tempfile

# Its own folder, so that loading DAG files neither reads nor writes the configuration of whoever runs the tests.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="manifold-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
