"""IPython front end: magics, their commands, completion, and session state."""
