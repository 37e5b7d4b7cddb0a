"""Handlers of the requests that a rank answers between cells, about variables, values, layouts, collectives and files.

They launch no program.
"""
