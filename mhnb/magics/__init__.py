"""IPython front end: the `%mhjax` and `%%mhjax` magics, their commands, completion, and the state of a shell."""
