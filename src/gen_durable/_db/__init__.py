"""Everything that speaks to PostgreSQL: the statements, the plans that use them, and the drivers that run plans."""
