"""Check whether a spec can resume the run in a folder. It may change the number of rounds and the machine only."""

import json

from feda2l.errors import FedA2LError
from feda2l.faults.plan import FaultPlan
from feda2l.plain_values import PlainDict
from feda2l.records.run_folder import RunFolder
from feda2l.spec.spec import Spec

# keys that a resumed run may change: more rounds, another machine
FREE = ("rounds", "runtime.device", "runtime.workers", "runtime.checkpoint_seconds")


def saved_spec(folder: RunFolder) -> Spec | None:
    """The spec that the folder's run began with; one of an older version has the present keys."""
    return Spec.load_saved(folder.spec) if folder.started else None


def continued(spec: Spec, saved: Spec | None) -> Spec:
    """Return the spec of a resumed run. A default horizon keeps its saved value even if rounds are added."""
    if saved is None or spec.rates.horizon is not None:
        return spec
    values = spec.model_dump(exclude_unset=True)
    values["rates"] = values.get("rates", {}) | {"horizon": saved.rates.horizon}
    return Spec.parse(values)


def check_same_run(spec: Spec, saved: Spec, folder: RunFolder) -> None:
    """Raise an error if a key outside `FREE` changed. Engine and precision must not change: results depend on them."""
    new, old = flat(spec), flat(saved)
    changed = [key for key in sorted(new.keys() | old.keys()) if new.get(key) != old.get(key)]
    changed = [key for key in changed if key not in FREE]
    if changed:
        lines = [f"  {key}: {old.get(key)!r} in the folder, {new.get(key)!r} now" for key in changed]
        raise FedA2LError(
            f"--resume: {folder.spec} differs from the given spec:\n" + "\n".join(lines) + "\nchoose another --out",
            see="resume",
        )
    if spec.rounds < saved.rounds:
        raise FedA2LError(
            f"--resume: rounds = {spec.rounds} is less than the {saved.rounds} rounds in {folder.spec}", see="resume"
        )


def check_same_faults(faults: FaultPlan | None, folder: RunFolder) -> None:
    """Raise an error if a resumed run would use another fault plan than its completed rounds."""
    if faults is not None and folder.faults.exists() and folder.faults.read_text(encoding="utf-8") != faults.text:
        raise FedA2LError(
            f"--resume: the fault plan differs from the one this run started with ({folder.faults}); choose another "
            "--out",
            see="resume",
        )


def flat(spec: Spec) -> PlainDict:
    """Return a spec as a dictionary from `section.key` to value, without keys that are not set."""
    values: PlainDict = {}
    for key, value in json.loads(json.dumps(spec.model_dump(exclude_none=True))).items():
        values |= {f"{key}.{inner}": item for inner, item in value.items()} if isinstance(value, dict) else {key: value}
    return values


def finished(folder: RunFolder, spec: Spec) -> bool:
    try:
        summary = json.loads(folder.summary.read_bytes())
    except (OSError, ValueError):  # missing, or incomplete after a crash
        return False
    return bool(summary["status"] == "finished" and summary["rounds"] == spec.rounds)
