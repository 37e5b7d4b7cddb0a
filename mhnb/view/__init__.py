"""Formatting of everything that users see: HTML, text and the live widget.

Decides how a value of `core` is displayed. It does not know about processes, sockets or the cluster: its input is frozen values.
"""
