"""The notebook's surface: magics, Tab, `?`, auto mode, a kernel, a terminal."""
