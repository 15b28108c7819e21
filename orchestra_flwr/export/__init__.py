"""A saved encoder for those who use it without this package: ONNX, torch.export, a hub's folder."""

import os

# Before onnxruntime is loaded, which reads it once. Its packages for Linux otherwise store an
# identifier of the machine, and send data about what runs to Microsoft.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
