"""What a rank launches: recorded, agreed on with the others before it happens, and seen through to its end."""
