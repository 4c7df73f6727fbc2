"""The grammar: parts, methods, the registry, what flows through a run, random streams, errors."""
