"""Models as graphs for ONNX Runtime, OpenVINO and torch alone."""
