"""### Wrap the keys of signals under the key ring's current key.

**Reads** the wrapped keys of days beside the archive (`keys/`). **Writes** each again, wrapped under the first key of the ring
(`MANIFOLD_SIGNALS_KEYS_FILE`, or `MANIFOLD_SIGNALS_KEYS`). No signal is read or written:
payloads stay sealed under their days' keys.

**Trigger it** after a new key was put first in the ring; every Sunday it also runs by itself. When it
has run and its result says `"gone": []`, the old key can leave the ring. **Do not trigger it** with a ring from which a key was
taken before: what that key has wrapped stays as it is, and is named as `gone`.

**When it fails** some keys are wrapped under the new key and the others under the old one: both are in the ring. Clear the task.

**To back out** put the old key first in the ring, and trigger it again.

Owner: data-platform.
"""

from airflow.sdk import DAG

from dags._defaults import DAG_DEFAULTS, by_cron, plain_job
from manifold.settings import load_settings

with DAG(
    "rotate_keys",
    tags=["housekeeping", "signals"],
    doc_md=__doc__,
    **DAG_DEFAULTS | by_cron(load_settings().signals_rotate_schedule),
):
    plain_job("rotate_keys")
