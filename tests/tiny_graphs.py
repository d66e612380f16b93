"""Graphs of models in every format, where their runtimes are installed."""

import shutil
from contextlib import contextmanager

import pytest

onnx, openvino = map(pytest.importorskip, ("onnx", "openvino"))
for needed in ("onnxruntime", "onnxscript", "nncf"):
    pytest.importorskip(needed)

from sublayers.convert.graphs import onnx_runtime, openvino_runtime, torch_program  # noqa: E402
from sublayers.training.serve.export import FILES, export_graph  # noqa: E402

RUNTIMES = {"onnx": onnx_runtime, "openvino": openvino_runtime, "torch_export": torch_program}
every_format = pytest.mark.parametrize("form", RUNTIMES)


@contextmanager
def known_onnx(file):
    """Let OpenVINO's graphs be made of an ONNX file that is there, since to make another one takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_runtime, "write", lambda program, to: shutil.copyfile(file, to))
        yield


def export_all(source, root):
    """Write a model's graphs into folders that are called like their formats."""
    export_graph(source, root / "onnx", "onnx")
    with known_onnx(root / "onnx" / FILES["onnx"][0]):
        for form in ("openvino", "torch_export"):
            export_graph(source, root / form, form)
