"""The figures of the lessons: `python -m tests.integration.lessons.figures` writes them to notebooks/img.

Each lesson has a module, such as `l05`, with its figures by file name in `FIGURES`. A figure runs JAX on eight CPU devices and
draws the values that JAX returned, so a figure cannot show a number that is wrong.
"""
