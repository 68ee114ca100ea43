"""Copy the files that list a spec's graph or links into the run folder, so that it is complete by itself."""

from pathlib import Path

from feda2l.errors import FedA2LError
from feda2l.records.run_folder import RunFolder
from feda2l.spec.spec import Spec


def copy_files(spec: Spec, folder: RunFolder) -> None:
    """Copy the files that a spec refers to into the run folder."""
    for section, file in _named(spec).items():
        folder.write(folder.listed[section], Path(file).read_bytes())


def check_same_files(spec: Spec, folder: RunFolder) -> None:
    """Raise an error if a resumed run would use another graph or other links than its completed rounds."""
    for section, file in _named(spec).items():
        copy = folder.listed[section]
        if copy.exists() and copy.read_bytes() != Path(file).read_bytes():
            raise FedA2LError(
                f"--resume: {section}.file = {file} differs from the file this run started with ({copy}); "
                "choose another --out",
                see="resume",
            )


def from_copies(spec: Spec, folder: RunFolder) -> Spec:
    """Return the spec with its file paths replaced by the copies in the run folder."""
    for section in _named(spec):
        if (copy := folder.listed[section]).exists():
            spec = spec.model_copy(update={section: getattr(spec, section).model_copy(update={"file": str(copy)})})
    return spec


def _named(spec: Spec) -> dict[str, str]:
    sections = {"network": spec.network, "topology": spec.topology if spec.topology.name == "file" else None}
    return {name: section.file for name, section in sections.items() if section and section.file}
