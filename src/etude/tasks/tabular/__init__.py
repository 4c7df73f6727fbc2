"""Tasks so small that everything about a policy can be computed: enumerable responses, finite decision processes."""
