"""The story behind `gen-durable demo`: a shop, two worker processes, and a SIGKILL."""
