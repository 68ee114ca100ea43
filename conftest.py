"""Doctests are collected from every module; what needs packages that are not there is left out."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") else ["src/feda2l/*/cuda_*.py"]
for module, package in {"lightning": "pytorch_lightning", "trainer": "transformers", "flower": "flwr"}.items():
    if not find_spec(package):
        collect_ignore_glob.append(f"src/feda2l/integrations/{module}.py")
