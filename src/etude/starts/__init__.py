"""What `etude new` writes: a commented start of each kind, which `etude check` finds nothing wrong with."""
