"""Names of versions before 0.1: specs that use them get an error with the new name, old records load under the new one.

This module is the only place outside the changelog where an old name occurs.
"""

from collections.abc import Mapping

from feda2l.plain_values import PlainDict, PlainMapping

# key of a spec -> its new name
SPEC_KEYS = {
    "data.node": "data.node_column",
    "data.target": "data.target_column",
    "data.columns": "data.feature_columns",
    "data.test_share": "data.test_fraction",
    "model.start": "model.initial_weights",
    "model.start_sha256": "model.initial_weights_sha256",
    "model.fresh": "model.reinitialize",
}
# column or key of a round's record -> its new name
RECORD_KEYS = {"sigma": "divergence", "zeta": "stability", "heard": "received"}
# key or value of a run's summary -> its new name
SUMMARY_WORDS = {"diverged": "non_finite"}


def current_record(record: PlainDict) -> PlainDict:
    """The record of a round with the present names, in the same order. Changes nothing in a present record."""
    if not isinstance(record, Mapping) or "sigma" not in record.get("layers", ()):
        return record
    renamed = _renamed(record, RECORD_KEYS)
    return renamed | {part: _renamed(renamed[part], RECORD_KEYS) for part in ("nodes", "layers")}


def current_summary(summary: PlainDict) -> PlainDict:
    """The summary of a run with the present names."""
    renamed = _renamed(summary, SUMMARY_WORDS)
    status = renamed.get("status")
    return renamed | ({"status": SUMMARY_WORDS[status]} if status in SUMMARY_WORDS else {})


def current_spec(values: PlainMapping) -> PlainDict:
    """The spec of an old run folder with the present keys.

    >>> current_spec({"seed": 1, "model": {"name": "cnn", "start": "weights.safetensors"}})
    {'seed': 1, 'model': {'name': 'cnn', 'initial_weights': 'weights.safetensors'}}
    """
    return {
        section: (
            {SPEC_KEYS.get(f"{section}.{key}", f".{key}").partition(".")[2]: value for key, value in table.items()}
            if isinstance(table, Mapping)
            else table
        )
        for section, table in values.items()
    }


def _renamed(table: PlainMapping, names: Mapping[str, str]) -> PlainDict:
    return {names.get(key, key): value for key, value in table.items()}
