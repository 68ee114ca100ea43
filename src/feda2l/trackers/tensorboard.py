"""Tracker for TensorBoard. It writes `RUN/tensorboard`; `tensorboard --logdir runs` shows all runs below a folder."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from feda2l.errors import FedA2LError
from feda2l.plain_values import PlainMapping
from feda2l.trackers import TimedRecord, TrackedRun
from feda2l.trackers.figures import figures

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event


class TensorBoardTracker:
    """Logs rounds as steps. A resumed run replaces the steps that it computes again."""

    def begin(self, run: TrackedRun) -> None:
        run.tracker_state["round"] = min(run.tracker_state.get("round", 0), run.round)
        self.events = EventFile(run.path / "tensorboard", run.tracker_state["round"] + 1)
        self.events.text("spec", "".join(f"    {line}\n" for line in run.spec.to_toml().splitlines()))

    def round(self, record: TimedRecord) -> None:
        self.events.scalars(figures(record), record["round"])

    def end(self, summary: PlainMapping) -> None:
        self.events.close()


class EventFile:
    """Writer of TensorBoard's event format. Without a background thread, so that a full disk raises here."""

    def __init__(self, folder: Path, first: int = 1) -> None:
        self.demand()
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.protos = event_pb2, summary_pb2, tensor_pb2, types_pb2
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names; a file replaces all earlier steps from its first step on
        self.file = open(folder / f"events.out.tfevents.{first:010d}.feda2l", "wb")  # noqa: SIM115
        self.writer = RecordWriter(self.file)
        self._write(event_pb2.Event(file_version="brain.Event:2"))
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(event_pb2.Event(step=first, session_log=start))

    @staticmethod
    def demand() -> None:
        try:
            import tensorboard.summary.writer.record_writer  # noqa: F401
        except ImportError as error:
            why = "writing TensorBoard events needs tensorboard; run pip install 'feda2l[tensorboard]'"
            raise FedA2LError(why, see="missing-extra") from error

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        event_pb2, summary_pb2, _, _ = self.protos
        entries = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._write(event_pb2.Event(step=step, summary=summary_pb2.Summary(value=entries)))

    def text(self, tag: str, text: str) -> None:
        event_pb2, summary_pb2, tensor_pb2, types_pb2 = self.protos
        shown = summary_pb2.SummaryMetadata(
            plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="text"),
            data_class=summary_pb2.DATA_CLASS_TENSOR,
        )
        tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[text.encode()])
        tensor.tensor_shape.dim.add(size=1)
        value = summary_pb2.Summary.Value(tag=tag, metadata=shown, tensor=tensor)
        self._write(event_pb2.Event(summary=summary_pb2.Summary(value=[value])))

    def close(self) -> None:
        self.file.close()

    def _write(self, event: "Event") -> None:
        event.wall_time = time.time()
        self.writer.write(event.SerializeToString())
        self.file.flush()
