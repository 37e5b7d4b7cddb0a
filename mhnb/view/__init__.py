"""Everything a person sees: HTML, text and the live widget.

Decides how a value of `core` looks. Knows nothing of processes, sockets or the cluster: it is handed frozen values.
"""
