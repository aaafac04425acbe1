"""How messages travel between the server and the clients: over MPI, or within one process."""
