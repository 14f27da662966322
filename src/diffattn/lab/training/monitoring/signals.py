"""SIGTERM and Ctrl-C save a checkpoint before they end a run."""

import os
import signal
import threading
from typing import Any

import torch
from torch import distributed
from transformers import TrainerCallback

from diffattn.lab.training.distributed import num_processes
from diffattn.lab.training.monitoring.termination import Terminated


class StopSignals(TrainerCallback):
    """Within ``with``, SIGTERM and the first SIGINT end training after the current step.

    A second signal ends the process without a checkpoint. Under torchrun a second SIGTERM is
    ignored: the scheduler and torchrun both send one, and torchrun kills processes that do not
    end. Outside the main thread signals are left alone. All processes of a run end at one step.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) != signal.SIG_IGN:  # ignored in a background job
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save, and end training, if a signal has come."""
        if self._agreed(args.device):
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End training if a signal has come meanwhile: there is a checkpoint now."""
        if self._agreed(args.device):
            control.should_training_stop = True

    def require_none(self, state: str, device: torch.device) -> None:
        """End the run if any process has received a signal, and say its ``state``."""
        if not self._agreed(device):
            return
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt(state)
        raise Terminated(state)

    def _receive(self, number: int, frame: object) -> None:
        self.received = signal.Signals(number)
        # SIG_DFL ends the process even within a long kernel; KeyboardInterrupt mends the terminal.
        launched = num_processes() > 1 or "TORCHELASTIC_RUN_ID" in os.environ
        again = {
            signal.SIGINT: signal.default_int_handler,
            signal.SIGTERM: signal.SIG_IGN if launched else signal.SIG_DFL,
        }
        for other in self._before:
            signal.signal(other, again[other])

    def _agreed(self, device: torch.device) -> bool:
        """Whether any process was asked to end; the answer is the same on all of them."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return self.received is not None
        asked = torch.tensor(self.received or 0, device=device)
        distributed.all_reduce(asked, op=distributed.ReduceOp.MAX)
        if int(asked):
            self.received = self.received or signal.Signals(int(asked))
        return bool(int(asked))
