"""Answers to the exercises, right and wrong, and what cells must say: a module for each lesson, found by itself.

They are here and not in the package, so that nobody meets a solution before trying.
"""
