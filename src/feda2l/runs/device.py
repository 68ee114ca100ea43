"""Choose the device a run trains on, and explain why another one is not available."""

import os
from importlib.util import find_spec

import torch

from feda2l.errors import FedA2LError
from feda2l.spec.sections import RuntimeSpec


def find_device(runtime: RuntimeSpec) -> torch.device:
    """Return the device that `[runtime]` requests. `auto` is a GPU if one can be used, else the CPU."""
    why = "" if runtime.device == "cpu" else why_no_gpu()
    if runtime.device == "cuda" and why:
        raise FedA2LError(f'runtime.device = "cuda" is not available: {why}', see="no-gpu")
    if runtime.device == "cpu" or why:
        if refusal := why_not_on_cpu(runtime):
            raise FedA2LError(f'runtime.precision = "{runtime.precision}" {refusal}', see="no-gpu")
        return torch.device("cpu")
    if runtime.deterministic:
        # cuBLAS uses one algorithm per product only with this setting, which it reads on first use
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return torch.device("cuda", torch.cuda.current_device())


def why_not_on_cpu(runtime: RuntimeSpec) -> str:
    """Return the reason why a CPU cannot compute in this precision, or an empty string if it can."""
    if runtime.precision == "tf32":
        return "needs a GPU; a CPU computes in fp32 or bf16"
    if runtime.precision == "bf16" and not cpu_has_bf16():
        return "is slower than fp32 on this CPU, which has no bf16 instructions; use fp32 or a GPU"
    if runtime.precision == "bf16" and runtime.engine == "batched":
        return 'cannot be combined with runtime.engine = "batched" on a CPU; use runtime.engine = "auto"'
    return ""


def cpu_has_bf16() -> bool:
    """True if this processor has bf16 instructions. Without them every number is converted to fp32 and back."""
    has = torch.cpu.get_capabilities()
    return any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))


def why_no_gpu() -> str:
    """Return the reason why no GPU can be used, or an empty string if one can."""
    if torch.version.cuda is None:
        return "this torch is a CPU build; install one with CUDA"
    if not torch.cuda.is_available():
        return "torch finds no GPU or no driver; run nvidia-smi to check"
    return "" if find_spec("triton") else "the package triton is missing; run pip install triton"
