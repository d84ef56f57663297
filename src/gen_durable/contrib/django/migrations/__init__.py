"""One migration for each increment of the schema."""
