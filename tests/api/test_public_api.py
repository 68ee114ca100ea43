"""The public interface is listed and does not change without a changelog entry."""

import ast
import importlib
from pathlib import Path

import pytest

from tools import public_api as api


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return api.public_api()


def test_the_list_matches_the_code(lines: list[str]) -> None:
    changed = "\n".join(api.difference(lines))
    assert not changed, (
        "the public interface changed; if that is meant, take it with an entry in CHANGELOG.md:\n"
        f'  python tools/public_api.py "what changed and why"\n{changed}'
    )


def test_the_changelog_announces_the_current_interface(lines: list[str]) -> None:
    assert api.announced(lines), (
        f"CHANGELOG.md has no entry - `{api.fingerprint(lines)}` in words; write it with:\n"
        '  python tools/public_api.py "what changed and why"'
    )


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of the list and the changelog that a test can change."""
    monkeypatch.setattr(api, "ROOT", tmp_path)
    for name in ("SNAPSHOT", "CHANGELOG"):
        copy = tmp_path / getattr(api, name).name
        copy.write_text(getattr(api, name).read_text())
        monkeypatch.setattr(api, name, copy)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, lines: list[str], *words: str) -> None:
    monkeypatch.setattr(api, "public_api", lambda: lines)
    monkeypatch.setattr("sys.argv", ["public_api.py", *words])
    api.main()


def test_a_changed_signature_needs_a_description(
    lines: list[str], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = [line.replace("progress: bool=True", "progress: bool=False") for line in lines]
    assert any(line.startswith("+feda2l.run(") for line in api.difference(changed))
    with pytest.raises(SystemExit, match="what changed and why"):
        run(monkeypatch, changed)
    with pytest.raises(SystemExit, match="what changed and why"):
        run(monkeypatch, changed, " ")
    assert api.snapshot() == lines
    run(monkeypatch, changed, "`feda2l.run` is silent unless told.")
    assert api.difference(changed) == []
    assert api.announced(changed)
    assert not api.announced(lines)  # reverting is a change too
    assert f"- `{api.fingerprint(lines)}` " in api.CHANGELOG.read_text()  # earlier entries stay
    entry = f"- `{api.fingerprint(changed)}` `feda2l.run` is silent unless told."
    assert api.CHANGELOG.read_text().splitlines().count(entry) == 1


def test_only_an_interface_entry_with_a_description_counts(lines: list[str], elsewhere: Path) -> None:
    changed = [*lines, "feda2l.new()"]
    api.SNAPSHOT.write_text("\n".join(changed) + "\n")  # accepted by hand
    said = api.CHANGELOG.read_text()
    for line in ("- Something else.", f"- `{api.fingerprint(changed)}` "):  # the second has no description
        api.CHANGELOG.write_text(said.replace("### Public interface\n\n", f"### Public interface\n\n{line}\n", 1))
        assert not api.announced(changed)


def test_a_changelog_without_the_section_gets_it(elsewhere: Path) -> None:
    head, added = "# Changelog\n\n## [2.0]\n\n", "### Added\n\n- A.\n\n"
    older = "## [1.0]\n\n### Public interface\n\n- `0` Old.\n"
    api.CHANGELOG.write_text(head + added + older)
    api._announce(["one"], "First.")
    api._announce(["two"], "Second.")
    one, two = api.fingerprint(["one"]), api.fingerprint(["two"])
    section = f"### Public interface\n\n- `{two}` Second.\n- `{one}` First.\n\n"
    assert api.CHANGELOG.read_text() == head + section + added + older


@pytest.mark.parametrize("name", api.MODULES)
def test_names_that_are_not_public_in_a_public_module_have_an_underscore(name: str) -> None:
    module = importlib.import_module(name)
    defined = set()
    for node in ast.parse(Path(str(module.__file__)).read_text()).body:
        match node:
            case ast.FunctionDef(name=own) | ast.ClassDef(name=own) | ast.AnnAssign(target=ast.Name(id=own)):
                defined.add(own)
            case ast.Assign(targets=targets):
                defined |= {target.id for target in targets if isinstance(target, ast.Name)}
    assert [own for own in defined if not own.startswith("_") and own not in module.__all__] == []
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    assert [own for own in module.__all__ if not hasattr(module, own)] == []


def test_the_page_names_every_public_module() -> None:
    page = (Path(__file__).parents[2] / "docs" / "api-stability.md").read_text()
    for name in api.MODULES:
        parent, _, last = name.rpartition(".")
        assert f"`{name}`" in page or (f"`{parent}` and its" in page and f"`{last}`" in page), name
