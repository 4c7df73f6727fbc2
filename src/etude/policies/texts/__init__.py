"""What models say of texts that were given."""
