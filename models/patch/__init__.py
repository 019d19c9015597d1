"""What `apply` replaces in each architecture of transformers."""
