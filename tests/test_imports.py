"""Imports between packages follow the table below, and the table has no cycle."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "feda2l"
# Every package may import these modules. They import only each other.
FOUNDATION = {
    "equations",
    "errors",
    "http_server",
    "imports",
    "layers",
    "names",
    "old_names",
    "optimizer_groups",
    "plain_values",
    "randomness",
    "toml_files",
    "worker_pool",
}

ALLOWED: dict[str, set[str]] = {
    "reference": set(),
    "records": set(),
    "wire": set(),
    "algorithms": set(),
    "topology": set(),
    "models": set(),
    "data": set(),
    "rates": {"records"},
    "faults": {"topology"},
    "scheduler": {"rates"},
    "network": {"faults", "topology"},
    "integrations": {"scheduler"},
    "spec": {"algorithms", "data", "models", "network", "rates", "topology"},
    "round": {"algorithms", "data", "network", "rates", "records", "topology"},
    "trackers": {"records", "spec"},
    "engines": {"algorithms", "data", "models", "round"},
    "simulate": {"algorithms", "engines", "faults", "network", "rates", "records", "round", "topology"},
    "distributed": {"engines", "network", "rates", "round", "simulate", "topology"},
    "runs": {
        "algorithms",
        "data",
        "distributed",
        "engines",
        "faults",
        "models",
        "network",
        "rates",
        "records",
        "round",
        "simulate",
        "spec",
        "topology",
        "trackers",
    },
    "studies": {
        "algorithms",
        "data",
        "distributed",
        "engines",
        "rates",
        "records",
        "round",
        "runs",
        "simulate",
        "spec",
        "trackers",
    },
    "peer": {
        "algorithms",
        "engines",
        "faults",
        "network",
        "rates",
        "records",
        "round",
        "runs",
        "simulate",
        "spec",
        "topology",
        "wire",
    },
    "report": {"algorithms", "data", "rates", "records", "runs", "spec", "studies", "topology", "trackers"},
    "swarm": {"engines", "faults", "peer", "records", "round", "runs", "simulate", "spec", "topology", "wire"},
    "bench": {"data", "engines", "models", "peer", "round", "runs", "simulate", "spec", "topology", "wire"},
    "watch": {"records", "report", "studies"},
    "cli": {
        "algorithms",
        "bench",
        "data",
        "distributed",
        "models",
        "network",
        "peer",
        "rates",
        "records",
        "report",
        "runs",
        "spec",
        "studies",
        "swarm",
        "topology",
        "watch",
        "wire",
    },
}


def package_of(path: Path) -> str:
    """The package of a module. A top-level module counts as a package."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(path: Path) -> set[str]:
    """The packages that a module imports: at the top, inside functions or for type checking."""
    packages = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        packages |= {name.split(".")[1] for name in names if name.startswith("feda2l.")}
    return packages


def imports_by_package() -> dict[str, set[str]]:
    edges: dict[str, set[str]] = {}
    known = {package_of(path) for path in ROOT.rglob("*.py")}
    for path in ROOT.rglob("*.py"):
        package = package_of(path)
        edges.setdefault(package, set()).update(imported(path) & known - {package, "__init__"})
    return {package: targets for package, targets in edges.items() if package not in ("__init__", "__main__")}


def test_every_import_between_packages_is_in_the_table():
    for package, targets in imports_by_package().items():
        allowed = FOUNDATION if package in FOUNDATION else FOUNDATION | ALLOWED[package]
        assert targets <= allowed, f"feda2l.{package} must not import {sorted(targets - allowed)}"


def test_the_table_has_no_unused_edge():
    imports = imports_by_package()
    unused = {package: sorted(allowed - imports[package]) for package, allowed in ALLOWED.items()}
    assert not any(unused.values()), unused


def test_imports_form_no_cycle():
    tuple(TopologicalSorter(imports_by_package()).static_order())
