"""Tasks of control."""
