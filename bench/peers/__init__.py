"""The same work on this engine and on other job queues and workflow engines for PostgreSQL: `./run bench --peers`."""
