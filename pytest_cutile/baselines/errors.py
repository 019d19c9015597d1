"""Why baselines cannot be used, or are not recorded."""


class BaselineError(RuntimeError):
    """Baselines that cannot be used; the message names file, line or key, and what to do."""


class Rejected(Exception):  # noqa: N818 - nothing is broken
    """The rules do not allow to record this; the message says why and what would."""
