"""Processes of a host: its supervisor, and the parts of a rank."""
