"""What talks to pytest: options, collection, fixtures, reports of tests, the terminal."""
