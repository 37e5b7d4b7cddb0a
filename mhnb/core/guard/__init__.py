"""Whether the ranks did the same: the rules of the guard, the agreement before a launch, and what arrays were made of."""
