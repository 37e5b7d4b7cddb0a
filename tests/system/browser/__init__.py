"""Tests of what people see: a real JupyterLab in Chromium."""
