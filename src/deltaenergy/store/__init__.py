"""Feature stores: plan, write, read, repair."""
