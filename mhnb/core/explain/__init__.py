"""What went wrong, in the user's own terms: known errors and their cures, what a rank is doing, who waits for whom."""
