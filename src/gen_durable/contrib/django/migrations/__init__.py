"""One for each increment of our schema."""
