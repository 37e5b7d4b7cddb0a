"""Tests of what users see in a real JupyterLab in Chromium."""
