"""Claims of methods that learn values."""
