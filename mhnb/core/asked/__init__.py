"""User input by flag, argument or cell, checked before anything is done."""
