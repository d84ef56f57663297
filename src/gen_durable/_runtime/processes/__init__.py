"""Other processes of a worker: supervised copies of the program, and the process pool for steps."""
