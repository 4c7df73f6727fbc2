"""The claims of systems."""
