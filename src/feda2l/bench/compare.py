"""`feda2l bench`: run every benchmark and print one line for each."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from feda2l.bench import works
from feda2l.errors import FedA2LError
from feda2l.names import look_up
from feda2l.plain_values import PlainDict
from feda2l.runs.device import cpu_has_bf16, why_no_gpu
from feda2l.runs.environment import environment
from feda2l.worker_pool import default_processes

BUSY = 0.5  # load average above which the results are not reliable


def bench(only: Sequence[str] = (), json_file: Path | None = None) -> None:
    """Run the benchmarks on this machine and print one line for each: its name first, its result last.

    Args:
        only: Names of the benchmarks to run; empty runs all default ones.
        json_file: File that gets the result of every repetition.
    """
    half = works.HALF_WORKS if cpu_has_bf16() else {}
    known = (
        works.WORKS
        | half
        | load_report_benchmarks()
        | load_exchange_benchmarks()
        | (_gpu_works() if not why_no_gpu() else {})
    )
    chosen = {name: look_up(name, known, "--only") for name in only or known}
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    facts = environment(threads_of_plain=torch.get_num_threads(), workers_of_ours=default_processes(), load=load)
    if load is not None and load > BUSY:
        works.note(
            f"other programs use {load:.1f} cores; this slows the plain loop with several threads most, so the "
            "ratios are too high"
        )
    print(
        f"{facts['processor']}, {facts['cores']} cores, torch {facts['packages']['torch']}; plain loop: "
        f"{facts['threads_of_plain']} threads; ours: {facts['workers_of_ours']} workers with one thread each; "
        "medians (lowest to highest)",
        flush=True,
    )
    report = {}
    for name, work in chosen.items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        result = work()
        print(f"{name:<16} {result.what}: {result.outcome}  {result.figure}", flush=True)
        report[name] = {"figure": result.figure, "what": result.what, **result.numbers}
    if json_file:
        _write(json_file, {"environment": facts, "works": report})


def _write(file: Path, values: PlainDict) -> None:
    try:
        file.write_text(json.dumps(values, indent=2) + "\n")
    except OSError as error:
        raise FedA2LError(f"--json {file}: cannot be written: {error.strerror}") from error


def load_report_benchmarks() -> dict[str, Callable[[], works.Result]]:
    """Return the report benchmark, or nothing if polars is not installed."""
    try:
        from feda2l.bench.report_work import REPORT_WORKS
    except ImportError:
        return {}
    return REPORT_WORKS


def load_exchange_benchmarks() -> dict[str, Callable[[], works.Result]]:
    """Return the exchange benchmark, or nothing if the extra `peers` is not installed."""
    try:
        from feda2l.bench.exchange_work import EXCHANGE_WORKS
    except ImportError:
        return {}
    return EXCHANGE_WORKS


def _gpu_works() -> dict[str, Callable[[], works.Result]]:
    from feda2l.bench.gpu_works import GPU_WORKS

    return GPU_WORKS
