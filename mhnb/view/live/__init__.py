"""Displays of a running cell, and the panel over a result."""
