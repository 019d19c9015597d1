"""Text that people read, made of results: for terminals, logs and CI pages."""
