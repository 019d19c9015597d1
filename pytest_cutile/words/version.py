"""The installed version. A module of its own: to import the package's public names is to know all of it."""


def version() -> str:
    """Return the version of the installed distribution, or "unreleased" in a source tree on PYTHONPATH."""
    from importlib import metadata

    try:
        return metadata.version("pytest-cutile")
    except metadata.PackageNotFoundError:
        return "unreleased"
