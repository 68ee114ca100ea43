"""May this spec go on in that folder? A resumed run may have more rounds and run elsewhere, nothing else."""

import json
from typing import Any

from feda2l.errors import FedA2LError
from feda2l.faults.plan import FaultPlan
from feda2l.old_names import current_spec
from feda2l.records.run_folder import RunFolder
from feda2l.spec.spec import Spec
from feda2l.toml_files import read_toml

# what a resumed run may change: it goes on to more rounds, or in another place
FREE = ("rounds", "runtime.device", "runtime.workers", "runtime.checkpoint_seconds")


def saved_spec(folder: RunFolder) -> Spec | None:
    """The spec that the folder's run began with; one of an older version has the present keys."""
    return Spec.parse(current_spec(read_toml(folder.spec)), str(folder.spec)) if folder.started else None


def continued(spec: Spec, saved: Spec | None) -> Spec:
    """The spec of a resumed run: a horizon that was not given stays what it was, also when rounds are added."""
    if saved is None or spec.rates.horizon is not None:
        return spec
    values = spec.model_dump(exclude_unset=True)
    values["rates"] = values.get("rates", {}) | {"horizon": saved.rates.horizon}
    return Spec.parse(values)


def check_same_run(spec: Spec, saved: Spec, folder: RunFolder) -> None:
    """Everything that is not `FREE` must be as it was: the engine and the precision too, since they decide the bits."""
    new, old = flat(spec), flat(saved)
    changed = [key for key in sorted(new.keys() | old.keys()) if new.get(key) != old.get(key)]
    changed = [key for key in changed if key not in FREE]
    if changed:
        lines = [f"  {key}: {old.get(key)!r} in the folder, {new.get(key)!r} now" for key in changed]
        raise FedA2LError(
            f"--resume: {folder.spec} is of a different spec:\n" + "\n".join(lines) + "\nchoose another --out",
            see="resume",
        )
    if spec.rounds < saved.rounds:
        raise FedA2LError(
            f"--resume: rounds = {spec.rounds} is less than the run's own {saved.rounds} ({folder.spec})", see="resume"
        )


def check_same_faults(faults: FaultPlan | None, folder: RunFolder) -> None:
    """The rounds that are done followed the folder's plan: the others must too."""
    if faults is not None and folder.faults.exists() and folder.faults.read_text(encoding="utf-8") != faults.text:
        raise FedA2LError(
            f"--resume: the fault plan is not the one that this run began with, {folder.faults}; choose another --out",
            see="resume",
        )


def flat(spec: Spec) -> dict[str, Any]:
    """A spec as `section.key` -> value, without what is not set."""
    values: dict[str, Any] = {}
    for key, value in json.loads(json.dumps(spec.model_dump(exclude_none=True))).items():
        values |= {f"{key}.{inner}": item for inner, item in value.items()} if isinstance(value, dict) else {key: value}
    return values


def finished(folder: RunFolder, spec: Spec) -> bool:
    try:
        summary = json.loads(folder.summary.read_bytes())
    except (OSError, ValueError):  # not there, or torn by a crash of the machine
        return False
    return bool(summary["status"] == "finished" and summary["rounds"] == spec.rounds)
