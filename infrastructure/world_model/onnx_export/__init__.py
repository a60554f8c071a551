"""A fitted model as one ONNX graph: encoder, networks, blend and calibration (extra ``onnx``).

`graph.py` computes what `WorldModel.predict_batch` does, of tensors; `export.py` writes the graph
and a file that describes its inputs and outputs.
"""

from infrastructure.world_model.onnx_export.export import OnnxExportError, export_onnx
from infrastructure.world_model.onnx_export.inputs import onnx_inputs

__all__ = ["OnnxExportError", "export_onnx", "onnx_inputs"]
