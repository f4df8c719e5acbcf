"""`python -m pipelines <stage> …`; also the application that spark-submit runs."""

import sys

from manifold.runtime.gc_tuning import look_seldom

look_seldom()  # first: importing is what most of a small job does

from pipelines.cli import main  # noqa: E402

sys.exit(main())
