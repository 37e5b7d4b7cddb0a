"""Preflight checks of the machines before a start, computed from reported facts alone."""
