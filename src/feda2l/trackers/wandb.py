"""Tracker for Weights & Biases. By default (WANDB_MODE unset) it is offline: files in `RUN/wandb` for `wandb sync`."""

import os
import secrets

from feda2l.plain_values import PlainMapping
from feda2l.trackers import TimedRecord, TrackedRun
from feda2l.trackers.figures import figures, outcome


class WandbTracker:
    """One W&B run per run. WANDB_PROJECT and the other environment variables of wandb apply.

    A resumed run continues under the same id. Offline that is a second folder, and `wandb sync --append` joins the
    two. W&B's process writes in blocks, so a killed run loses its last rounds there. The rounds after the checkpoint
    are therefore sent again.
    """

    def begin(self, run: TrackedRun) -> None:
        import wandb

        if run.tracker_state.get("open"):
            run.tracker_state["round"] = min(run.tracker_state.get("round", 0), run.round)
        self.tracker_state = run.tracker_state
        self.tracker_state["open"] = True
        mode: str = os.environ.get("WANDB_MODE", "offline")
        identity = run.tracker_state.setdefault("id", secrets.token_hex(4))
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "feda2l"),
            name=run.spec.name,
            config=run.spec.model_dump(mode="json", exclude_none=True),
            dir=run.path,
            id=identity,
            mode=mode,
            resume="allow" if mode == "online" else None,
            reinit="create_new",  # packed runs are tracked at the same time
            # do not upload the console output, the code or facts about the machine
            settings=wandb.Settings(
                console="off", silent=True, save_code=False, disable_git=True, x_disable_stats=True, x_disable_meta=True
            ),
        )

    def round(self, record: TimedRecord) -> None:
        self.run.log(figures(record), step=record["round"], commit=True)

    def end(self, summary: PlainMapping) -> None:
        results = outcome(summary)
        self.run.summary.update(results)
        self.run.finish(exit_code=int(results["status"] == "non_finite"))
        self.tracker_state["open"] = False
