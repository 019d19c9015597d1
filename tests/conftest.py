"""What all tests share: the processes that they start."""

import os

# Containers often set it. Each of the processes that tests start would then compile what it imports anew,
# and rewrite its asserts: a third of its time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
