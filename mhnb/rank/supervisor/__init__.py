"""Parts of a host's supervisor: starting processes, preparing the host, the shared board, and the timeout when abandoned."""
