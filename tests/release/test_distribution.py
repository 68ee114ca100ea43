"""The distribution: its files, its metadata, and that it runs from an empty environment."""

import email
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.specifiers import SpecifierSet

from tools.try_distribution import try_distribution

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXPLAINED = "feda2l/troubleshooting.md"  # a page of docs/ that is part of the package
IN_THE_REPOSITORY_ONLY = ("tests/", "results/", "reproduction/", "tools/", ".github/", "runs/", "deploy/")
APART = {"lightning", "transformers", "flower", "hivemind", "integrations"}  # extras with a separate lock file


def build(out: Path) -> dict[str, Path]:
    """The sdist and the wheel that is built from it."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {"wheel": next(out.glob("*.whl")), "sdist": next(out.glob("*.tar.gz"))}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build(tmp_path_factory.mktemp("dist"))


def wheel_files(dist: dict[str, Path]) -> set[str]:
    with zipfile.ZipFile(dist["wheel"]) as wheel:
        return set(wheel.namelist())


def sdist_files(dist: dict[str, Path]) -> set[str]:
    with tarfile.open(dist["sdist"]) as sdist:
        return {member.name.partition("/")[2] for member in sdist}


def test_the_wheel_has_exactly_the_files_of_the_package(dist: dict[str, Path]) -> None:
    source = ROOT / "src"
    package = {
        str(path.relative_to(source))
        for path in (source / "feda2l").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = {name for name in wheel_files(dist) if ".dist-info/" not in name}
    assert found == package | {EXPLAINED}
    named = {"feda2l/py.typed", "feda2l/studies/shipped/digits-rules.toml", "feda2l/report/page_parts/page.html"}
    assert named <= found
    assert any(name.startswith("feda2l/report/paper/") and name.endswith(".csv") for name in found)


def test_the_sdist_has_exactly_the_sources_of_the_wheel(dist: dict[str, Path]) -> None:
    found = sdist_files(dist)
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "lock.txt", "docs/troubleshooting.md"} <= found
    assert {f"src/{name}" for name in wheel_files(dist) - {EXPLAINED} if ".dist-info/" not in name} <= found
    assert not [name for name in found if name.startswith(IN_THE_REPOSITORY_ONLY)]
    assert dist["sdist"].stat().st_size < 5_000_000


def test_the_metadata_is_valid_and_matches_the_project(dist: dict[str, Path]) -> None:
    with zipfile.ZipFile(dist["wheel"]) as wheel:
        name = f"feda2l-{PROJECT['version']}.dist-info"
        raw = wheel.read(f"{name}/METADATA")
        entries = wheel.read(f"{name}/entry_points.txt").decode()
        tags = email.message_from_bytes(wheel.read(f"{name}/WHEEL")).get_all("Tag")
    metadata = Metadata.from_email(raw, validate=True)
    assert (metadata.name, str(metadata.version)) == ("feda2l", PROJECT["version"])
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.license_files == ["LICENSE"]
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description == (ROOT / "README.md").read_text()
    assert metadata.requires_python == SpecifierSet(">=3.11")
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)} <= set(metadata.classifiers or ())
    assert set(PROJECT["optional-dependencies"]) == set(metadata.provides_extra or ())
    plain = [str(need) for need in metadata.requires_dist or () if not need.marker]
    assert sorted(plain) == sorted(PROJECT["dependencies"])
    assert entries == "[console_scripts]\nfeda2l = feda2l.cli.main:main\n"
    assert tags == ["py3-none-any"]


def test_one_version_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {PROJECT['version']}\n" in citation


@pytest.mark.parametrize(("lock", "apart"), [("lock.txt", False), ("lock-integrations.txt", True)])
def test_every_dependency_is_pinned(lock: str, apart: bool) -> None:
    pins = [line.split("==")[0] for line in (ROOT / lock).read_text().splitlines() if "==" in line]
    pinned = {name.lower().replace("_", "-").replace(".", "-") for name in pins}
    assert len(pinned) == len(pins)
    extras = PROJECT["optional-dependencies"]
    wanted = [need for name, own in extras.items() if (name in APART) == apart for need in own]
    names = {need.partition(">=")[0].lower() for need in PROJECT["dependencies"] + wanted if "feda2l[" not in need}
    assert names <= pinned


@pytest.mark.long
def test_the_same_source_gives_the_same_bytes(dist: dict[str, Path], tmp_path: Path) -> None:
    again = build(tmp_path)
    for kind, path in dist.items():
        assert again[kind].read_bytes() == path.read_bytes(), kind


@pytest.mark.long
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_installs_into_an_empty_environment_and_runs_the_demo(dist: dict[str, Path], kind: str) -> None:
    shown = try_distribution(dist[kind])
    for rule in ("constant", "feda2l", "decay_only"):
        assert rule in shown
    assert "figure: runs/demo/demo.png" in shown
