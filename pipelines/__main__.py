"""`python -m pipelines <stage> …`; also the application that spark-submit runs."""

import sys

from pipelines.cli import main

sys.exit(main())
