"""What watches over one start of a run, put together."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from diffattn.lab.training.callbacks import DivergenceError, MetricsCallback, OnMessage
from diffattn.lab.training.checkpoints import last_checkpoint
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.monitoring.batch_guard import GUARD, BatchGuard, GuardStop
from diffattn.lab.training.monitoring.gradient_flow import GradientFlowCallback
from diffattn.lab.training.monitoring.lambda_policy import LambdaPolicy
from diffattn.lab.training.monitoring.postmortem import POSTMORTEM, write_postmortem
from diffattn.lab.training.monitoring.trackers import Reporter
from diffattn.lab.training.monitoring.watching import WatchCallback


class Monitor:
    """Policies of the guard, measurements, trackers and the post-mortem of one run.

    Args:
        folder: Run directory.
        config: The run.
        on_message: Given one line for everything that is done.
    """

    def __init__(self, folder: Path, config: RunConfig, on_message: OnMessage) -> None:
        self.folder = folder
        self.config = config
        self.on_message = on_message
        judges = config.guard.judges_batches
        self.guard = BatchGuard(folder, config, on_message) if judges else None

    def last_checkpoint(self) -> Path | None:
        """The newest one that is whole and of what the run does."""
        fits: Callable[[Path], bool] = self.guard.fits if self.guard else lambda path: True
        return last_checkpoint(self.folder / "checkpoints", self.on_message, fits=fits)

    def first_callbacks(self) -> list[TrainerCallback]:
        """Those that come before what reads their logs."""
        return [] if self.guard is None else [self.guard]

    def attach(
        self,
        trainer: Any,
        metrics: MetricsCallback,
        probe: Mapping[str, Any],
    ) -> None:
        """Add everything else to a trainer.

        Args:
            trainer: Made with :meth:`first_callbacks`.
            metrics: Whose numbers trackers get too.
            probe: The validation windows that measurements read, see :class:`WatchCallback`.
        """
        trainer.guard = self.guard
        if self.guard is not None:
            self.guard.trainer = trainer
        if self.config.guard.lam != "report" and self.config.model.attention.lambda_vectors:
            trainer.add_callback(LambdaPolicy(self.folder / GUARD, self.config))
        if self.config.gradient_steps:
            trainer.add_callback(
                GradientFlowCallback(self.folder, self.config, gradient_norm=trainer.gradient_norm)
            )
        reporter = Reporter(trainer)
        metrics.report = reporter.send
        trainer.add_callback(
            WatchCallback(
                self.folder, self.config, probe,
                gradient_norm=trainer.gradient_norm, report=reporter.send,
            )
        )  # fmt: skip

    def handle_divergence(self, error: DivergenceError, trainer: Any) -> DivergenceError:
        """Handle a diverged run: roll back if the guard allows it, else write the post-mortem.

        Returns:
            The error that ends the run. A run whose divergence is a result gets no post-mortem.

        Raises:
            RolledBack: It does not end: training has to begin again.
            Terminated: SIGTERM came, so that it ends here.
            KeyboardInterrupt: So with SIGINT.
        """
        if self.guard is not None and self.config.guard.not_finite == "roll_back":
            try:
                if not isinstance(error, GuardStop):
                    self.guard.roll_back(error.step, "a number", "nan or infinity")
            except GuardStop as stop:
                error = stop
        if "divergence" not in self.config.resolved():
            write_postmortem(self.folder, self.config, trainer, error)
            self.on_message(f"what the run looked like at its end: {self.folder / POSTMORTEM}")
        return error
