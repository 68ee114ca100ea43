"""Which device a run trains on, and why not the other."""

import os
from importlib.util import find_spec

import torch

from feda2l.errors import FedA2LError
from feda2l.spec.sections import RuntimeSpec


def find_device(runtime: RuntimeSpec) -> torch.device:
    """The device that `[runtime]` asks for; `auto` is a GPU where one can be used."""
    why = "" if runtime.device == "cpu" else why_no_gpu()
    if runtime.device == "cuda" and why:
        raise FedA2LError(f'runtime.device = "cuda" is not available: {why}', see="no-gpu")
    if runtime.device == "cpu" or why:
        if refusal := why_not_on_cpu(runtime):
            raise FedA2LError(f'runtime.precision = "{runtime.precision}" {refusal}', see="no-gpu")
        return torch.device("cpu")
    if runtime.deterministic:
        # cuBLAS keeps to one plan a product only with this, and reads it when it is first used
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return torch.device("cuda", torch.cuda.current_device())


def why_not_on_cpu(runtime: RuntimeSpec) -> str:
    """Why a CPU does not compute in this precision; empty if it does."""
    if runtime.precision == "tf32":
        return "is for a GPU; a CPU computes in fp32 or bf16"
    if runtime.precision == "bf16" and not cpu_has_bf16():
        return "is slower than fp32 on this CPU, which has no instructions for it; use fp32, or a GPU"
    if runtime.precision == "bf16" and runtime.engine == "batched":
        return 'does not go with runtime.engine = "batched" on a CPU; leave engine at "auto"'
    return ""


def cpu_has_bf16() -> bool:
    """Does this processor multiply in bf16? Without such instructions every number is converted back and forth."""
    has = torch.cpu.get_capabilities()
    return any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))


def why_no_gpu() -> str:
    """Why no GPU can be used; empty if one can."""
    if torch.version.cuda is None:
        return "this torch is a CPU build; install one with CUDA"
    if not torch.cuda.is_available():
        return "torch finds no GPU or no driver; see nvidia-smi"
    return "" if find_spec("triton") else "the package triton is missing; pip install triton"
