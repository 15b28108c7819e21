"""A saved encoder for use without this package: ONNX, torch.export, a folder for the hub."""

import os

# Before onnxruntime is loaded, which reads it once. Its packages for Linux otherwise store an
# identifier of the machine, and send data about what runs to Microsoft.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
