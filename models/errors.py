"""What models, sizes and inputs are refused with."""


class Unsupported(ValueError):  # noqa: N818 - what was asked for is not supported; nothing went wrong
    """The kernels do not support this model, or what it was called with."""


class PromptTooLong(ValueError):  # noqa: N818 - says what is wrong
    """A prompt and its new tokens need more places than the cache has."""


class DoesNotFit(MemoryError):  # noqa: N818 - says what is wrong
    """The GPU's memory is too small; the message says what would fit."""


class NeedsGpu(RuntimeError):  # noqa: N818 - says what is wrong
    """A model of this size cannot be run on a CPU."""
