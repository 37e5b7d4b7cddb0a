"""What a rank answers between cells: variables, values, layouts, collectives, files. Nothing is launched for it."""
