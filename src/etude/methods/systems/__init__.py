"""Methods that are a way of running others."""
