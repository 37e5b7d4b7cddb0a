"""Right and wrong answers to the exercises, and words that cells must show. Each lesson has a module, found automatically.

They are not in the package, so that no learner sees a solution before trying.
"""
