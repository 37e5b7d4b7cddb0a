"""Layouts, meshes and plans as tables and maps."""
