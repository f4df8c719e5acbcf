"""`python -m pipelines <stage> …`; also the application that spark-submit runs."""

import sys

from manifold.runtime.gc_tuning import collect_rarely

collect_rarely()  # first: a small job spends most of its time importing

from pipelines.cli import main  # noqa: E402

sys.exit(main())
