"""What models, sizes and inputs are refused with."""


class Unsupported(ValueError):  # noqa: N818 - what was asked for is not supported; nothing went wrong
    """The kernels do not support this model, or what it was called with."""
