"""Where a network runs, and with how many digits."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from pairingnet.errors import SettingsError


def choose_device(name: str = "auto") -> torch.device:
    """ "auto" is the graphics card where there is one (each process of a launcher its own), else the processor."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if name == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise SettingsError(f"The device '{name}' cannot be used ({reason}).", "Use --device auto or cpu.") from error
    return device


class _OneThread:
    """How many callers want torch on one thread, and how many threads it had before the first of them."""

    lock = threading.Lock()
    callers = 0
    before = 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread, as long as any caller is inside.

    The networks of one fragment or one pair are small: a second thread costs more than it brings (many times more on
    a busy machine), and a process that forks after torch has started threads hangs. Pairs run in parallel instead.
    """
    threads = torch.get_num_threads()  # in a thread that has just begun, torch tells MKL only when it is asked
    with _OneThread.lock:
        if _OneThread.callers == 0:
            _OneThread.before = threads
            if threads != 1:
                torch.set_num_threads(1)
        _OneThread.callers += 1
    try:
        yield
    finally:
        with _OneThread.lock:
            _OneThread.callers -= 1
            if _OneThread.callers == 0 and _OneThread.before != 1:
                torch.set_num_threads(_OneThread.before)


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """What is nearly nothing is nothing, in this thread: a small similarity's eighth power costs a hundredfold else.

    Never for longer than a training step: other libraries rely on numbers next to zero (SciPy's k-d tree crashes
    without them).
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def exact_type(device: torch.device) -> torch.dtype:
    """What networks are computed in whose results are rounded to a grid: with these digits, the order in which a
    machine adds up its sums never reaches the result. (Apple's graphics cards have 32 bits only.)"""
    return torch.float32 if device.type == "mps" else torch.float64


def mixed_precision(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Matrix products and convolutions with 16 bits where that is asked for; everything else keeps 32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=of_products(precision, device) is torch.bfloat16)


def of_products(precision: str, device: torch.device) -> torch.dtype:
    """What matrix products are made in.

    "auto" is 16 bits on a graphics card that has them: there they are twice as fast. Processors without such
    units would only convert back and forth. bfloat16 has the range of float32, so no loss scaling is needed.
    """
    on = precision == "bfloat16" or (
        precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    )
    return torch.bfloat16 if on else torch.float32


def full_precision(x: torch.Tensor) -> AbstractContextManager[object]:
    """Inside of mixed precision: sums over thousands of points, and what is normalised by them, keep 32 bits."""
    return torch.autocast(x.device.type, enabled=False)


def widened(x: torch.Tensor) -> torch.Tensor:
    """With 32 bits where there were 16."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
