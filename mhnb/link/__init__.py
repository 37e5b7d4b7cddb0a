"""Carry commands out to the ranks and events in from them."""
