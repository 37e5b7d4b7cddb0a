"""Handlers of the requests that a rank answers between cells.

They are about variables, values, layouts, collectives and files, and launch no program.
"""
