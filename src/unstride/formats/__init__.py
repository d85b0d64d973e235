"""Model files and arrays on disk: OpenVINO IR, ONNX, .npy."""
