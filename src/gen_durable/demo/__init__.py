"""`gen-durable demo`: a shop on two worker processes, one of which is killed."""
