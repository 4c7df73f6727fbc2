"""What the claims of methods do, where comparing two runs does not say it."""
