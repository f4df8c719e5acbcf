"""Lake to queues: what is pending and was not handed over."""
