"""The subcommands of `pytest-cutile`: one module for each, listed in `cli.COMMANDS`."""
