"""Plugins that this project's own tests need."""

pytest_plugins = ["pytester"]
