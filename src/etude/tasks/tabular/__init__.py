"""Tasks so small that everything about a policy can be enumerated."""
