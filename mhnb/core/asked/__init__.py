"""What a user asks for, by flag, argument or cell: checked before anything is done."""
