"""### Process signals of the lake again, a run for each day.

**Reads** the raw signals of a day (`xray_raw_signals`), and opens their payloads. **Writes** the processed signals of that day
(`xray_processed_signals`) by the rules of now, in the place of all that the day had. A day that these rules have made, and whose
payloads could all be read, is over in seconds.

**It never starts by itself.** Choose *Backfill* behind *Trigger*, or `airflow backfill create`, for the days on which signals
came (UTC). A *Single Run* takes the day before. `again` processes all of the day: bounds are settings
(`MANIFOLD_SIGNALS_BOUNDS`), and nobody counts their versions.

**Trigger it** when the rules of processing have changed (column `rules`), or when a key ring is back that was missing (column
`problem`). **Do not trigger it** to bring back what a deleted key has sealed: nothing can.

**When it fails** the day is as it was; clear the task.

**To back out** there is nothing to do: rows are made of the raw signals, and can be made again.

Owner: data-platform.
"""

from airflow.sdk import DAG, Asset, Param

from dags._days import BackfillDays
from dags._defaults import DAG_DEFAULTS, plain_job
from manifold.contracts import assets

# The end of the run's day. A run that somebody triggers for no particular day has no interval; it takes the day before.
END = "(dag_run.data_interval_end or dag_run.run_after).replace(hour=0, minute=0, second=0, microsecond=0)"
DAY = (f"--from={{{{ ({END} - macros.timedelta(days=1)).isoformat() }}}}", f"--to={{{{ {END}.isoformat() }}}}")
PROCESSED = "xray_processed_signals"

with DAG(
    "process_signals",
    schedule=BackfillDays(),
    tags=["lake", "signals"],
    doc_md=__doc__,
    params={"again": Param(False, type="boolean", description="all of the day, also what the rules of now have made")},
    # No deadline: all runs of a backfill are queued at once, and most of a long backfill would miss it.
    **DAG_DEFAULTS | {"deadline": None},
):
    again = "{{ '--again' if params['again'] else '' }}"
    plain_job("process_signals", *DAY, again, outlets=[Asset(PROCESSED, assets.table_uri(PROCESSED))])
