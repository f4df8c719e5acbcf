"""Everything that runs besides the pipelines and the dispatcher."""
