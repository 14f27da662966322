"""The guard, measurements, trackers and post-mortem of one start of a run, put together."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from diffattn.lab.training.callbacks import DivergenceError, MetricsCallback, OnMessage
from diffattn.lab.training.checkpoints import last_checkpoint
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.monitoring.batch_guard import GUARD, BatchGuard, GuardStop
from diffattn.lab.training.monitoring.gradient_flow import GradientFlowCallback
from diffattn.lab.training.monitoring.lambda_policy import LambdaPolicy
from diffattn.lab.training.monitoring.postmortem import POSTMORTEM, write_postmortem
from diffattn.lab.training.monitoring.trackers import report
from diffattn.lab.training.monitoring.watching import WatchCallback


class Monitor:
    """Watches over one run."""

    def __init__(self, folder: Path, config: RunConfig, on_message: OnMessage) -> None:
        self.folder, self.config, self.on_message = folder, config, on_message
        is_guarded = config.guard.judges_batches
        self.guard = BatchGuard(folder, config, on_message) if is_guarded else None
        # The guard comes before the callbacks that read its logs.
        self.first_callbacks = [] if self.guard is None else [self.guard]

    def last_checkpoint(self) -> Path | None:
        """The newest whole checkpoint that has learned from no batch that is now left out."""
        fits = {} if self.guard is None else {"fits": self.guard.fits}
        return last_checkpoint(self.folder / "checkpoints", self.on_message, **fits)

    def attach(self, trainer: Any, metrics: MetricsCallback, probe: Mapping[str, Any]) -> None:
        """Connect the guard to a trainer that was made with ``first_callbacks``, and add the
        callbacks that measure; ``metrics`` sends λ to the trackers too."""
        trainer.guard = self.guard
        if self.guard is not None:
            self.guard.trainer = trainer
        if self.config.guard.lam != "report" and self.config.model.uses("lambda_vectors"):
            trainer.add_callback(LambdaPolicy(self.folder / GUARD, self.config))
        if self.config.gradient_steps:
            trainer.add_callback(GradientFlowCallback(self.folder, self.config, trainer))
        metrics.report = partial(report, trainer)
        trainer.add_callback(WatchCallback(self.folder, self.config, probe, trainer))

    def handle_divergence(self, error: DivergenceError, trainer: Any) -> DivergenceError:
        """Handle a diverged run: roll back if the guard allows it, else write the post-mortem.

        Returns the error that ends the run. A run whose divergence is a result has no post-mortem.
        """
        rolls_back = self.config.guard.not_finite == "roll_back"
        if self.guard is not None and rolls_back and not isinstance(error, GuardStop):
            try:
                self.guard.roll_back(error.step, "a number", "nan or infinity")
            except GuardStop as stop:
                error = stop
        if "divergence" not in self.config.resolved():
            write_postmortem(self.folder, self.config, trainer, error)
            self.on_message(f"the state of the run at its end: {self.folder / POSTMORTEM}")
        return error
