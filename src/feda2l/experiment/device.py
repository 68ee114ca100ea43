"""Which device a run trains on, and why not the other."""

import os
from importlib.util import find_spec

import torch

from feda2l.errors import FedA2LError
from feda2l.experiment.sections import RuntimeSpec


def find_device(runtime: RuntimeSpec) -> torch.device:
    """The device that `[runtime]` asks for; `auto` is a GPU where one can be used."""
    why = "" if runtime.device == "cpu" else why_no_gpu()
    if runtime.device == "cuda" and why:
        raise FedA2LError(f'runtime.device = "cuda" is not available: {why}', see="no-gpu")
    if runtime.device == "cpu" or why:
        if runtime.precision != "fp32":
            raise FedA2LError(
                f'runtime.precision = "{runtime.precision}" is for a GPU; the CPU computes in fp32', see="no-gpu"
            )
        return torch.device("cpu")
    if runtime.deterministic:
        # cuBLAS keeps to one plan a product only with this, and reads it when it is first used
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return torch.device("cuda", torch.cuda.current_device())


def why_no_gpu() -> str:
    """Why no GPU can be used; empty if one can."""
    if torch.version.cuda is None:
        return "this torch is a CPU build; install one with CUDA"
    if not torch.cuda.is_available():
        return "torch finds no GPU or no driver; see nvidia-smi"
    return "" if find_spec("triton") else "the package triton is missing; pip install triton"
