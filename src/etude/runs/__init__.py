"""A run, from names to a finished folder; several runs compared; claims; the model tiny made again."""
