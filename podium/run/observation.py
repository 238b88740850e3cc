"""What is recorded of runs besides their results: metrics in loggers, and a profile of some steps."""

from collections.abc import Callable
from dataclasses import dataclass

from podium.config.run_folder import WARM_STEPS, RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import UsageError


@dataclass(frozen=True)
class Observation:
    """The options of `podium run` that record more of each run."""

    log_to: tuple[str, ...] = ()  # names of loggers
    profile_steps: int | None = None
    profile_all_ranks: bool = False

    @property
    def options(self) -> list[str]:
        """The same options for `podium run` in a container or a job."""
        return [*(["--log-to", ",".join(self.log_to)] if self.log_to else []), *self.train_options]

    @property
    def train_options(self) -> list[str]:
        """The options of the implementation's `train`."""
        if self.profile_steps is None:
            return []
        return ["--profile", str(self.profile_steps), *(["--profile-all-ranks"] if self.profile_all_ranks else [])]

    def require_steps(self, config: RunConfig) -> None:
        """UsageError if a run has fewer steps than are traced, and so no complete profile."""
        needed, steps = WARM_STEPS + (self.profile_steps or 0), -(-config.max_samples // config.global_batch_size)
        if self.profile_steps is not None and steps < needed:
            raise UsageError(
                f"--profile {self.profile_steps}: tracing begins after {WARM_STEPS} steps, so that it needs {needed}, "
                f"and the run has {steps} (max_samples {config.max_samples} of global_batch_size "
                f"{config.global_batch_size}); allowed is max_samples from {needed * config.global_batch_size}"
            )

    def mark(self, run: RunFolder, note: Callable[[str], None]) -> None:
        """Mark a run that will be profiled, before its processes start; its log is not a result."""
        if self.profile_steps is not None:
            run.mark_profiled()
            note(f"Profiling {self.profile_steps} steps, so that this run's log is not a result")


NOTHING = Observation()
