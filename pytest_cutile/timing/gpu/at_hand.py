"""The GPU that a run uses: its timer, its lock, and what befell it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from pytest_cutile.timing.gpu.lock import GpuLock
from pytest_cutile.timing.gpu.nvml import NoGpuError, find_gpu
from pytest_cutile.words.errors import NO_TORCH, GateSkipped
from pytest_cutile.words.timing import Device, Timer
from pytest_cutile.words.verdicts import Reason


def torch_problem() -> str:
    """Return why torch cannot use the GPU and what mends that, or ""."""
    try:
        import torch
    except ImportError:
        return NO_TORCH
    if torch.cuda.is_available():
        return ""
    build = "a CPU build" if torch.version.cuda is None else f"built for CUDA {torch.version.cuda}"
    return f"torch {torch.__version__} ({build}) cannot use the GPU: install a CUDA build of torch"


class GpuAtHand:
    """The GPU of this process, looked for when it is first needed. There may be none."""

    def __init__(
        self,
        *,
        make_users_timer: Callable[[], Timer | None],
        make_timer: Callable[[Device], Timer],
        progress: Callable[[str], None],
    ) -> None:
        """Use the timer that the user makes, or else make one for a GPU that NVML finds."""
        self._make_users_timer = make_users_timer
        self._make_timer = make_timer
        self._is_from_nvml = False
        self._progress = progress
        self.unseen: dict[str, None] = {}
        """What could disturb the GPU and cannot be observed, each thing once."""
        self.failure: str | None = None
        """Set when a kernel broke the CUDA context: nothing can run on the GPU after that."""

    @cached_property
    def _timer_or_reason(self) -> Timer | str:
        timer = self._make_users_timer()
        if timer is not None:
            return timer
        try:
            timer = self._make_timer(find_gpu())
        except NoGpuError as error:
            return str(error)
        self._is_from_nvml = True
        return timer

    @property
    def timer(self) -> Timer:
        """The timer of this run.

        Raises:
            GateSkipped: there is no GPU.
        """
        if isinstance(self._timer_or_reason, str):
            raise GateSkipped(Reason.NO_GPU, f"no GPU: {self._timer_or_reason}")
        return self._timer_or_reason

    @property
    def device(self) -> Device | None:
        return None if isinstance(self._timer_or_reason, str) else self._timer_or_reason.device

    @property
    def missing(self) -> str:
        return self._timer_or_reason if isinstance(self._timer_or_reason, str) else ""

    def usable_device(self, arch: str) -> Device:
        """Return the GPU if gates for `arch` can run on it.

        Raises:
            GateSkipped: no GPU, another architecture, torch cannot use it, or its context is broken.
        """
        device = self.timer.device
        if device.arch != arch:
            raise GateSkipped(Reason.OTHER_ARCH, f"the GPU at hand is {device.name} ({device.arch})")
        if device.torch_device == "cuda":
            self.check_torch()
        if self.failure is not None:
            raise GateSkipped(Reason.NO_GPU, f"the GPU is unusable since {self.failure}")
        return device

    def check_torch(self) -> None:
        if problem := torch_problem():
            raise GateSkipped(Reason.NO_GPU, problem)
        import torch

        device = self.timer.device
        if not self._is_from_nvml:
            return
        name = torch.cuda.get_device_name(0)
        uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)  # torch tells it since 2.4
        if name != device.name or (uuid is not None and f"{uuid}" not in device.uuid):
            raise GateSkipped(
                Reason.NO_GPU,
                f"the first GPU is {device.name} ({device.uuid}) for NVML and {name} ({uuid}) for CUDA "
                "(another order, MIG, or torch used a GPU before pytest chose one for this worker): set "
                "CUDA_DEVICE_ORDER=PCI_BUS_ID and CUDA_VISIBLE_DEVICES to one whole GPU",
            )

    @cached_property
    def lock(self) -> GpuLock:
        device = self.timer.device
        return GpuLock(
            device.uuid,
            enabled=device.torch_device == "cuda",
            on_wait=lambda: self._progress(f"waiting for {device.name}, on which another process measures"),
        )
