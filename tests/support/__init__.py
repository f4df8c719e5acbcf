"""What several test packages need."""
