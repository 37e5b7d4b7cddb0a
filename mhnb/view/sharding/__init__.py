"""Format layouts, meshes and plans as tables and maps."""
