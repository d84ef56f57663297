"""The dashboard on a database with a million instances, and beside a worker at full speed."""
