"""A saved encoder for those who use it without this package: ONNX, torch.export, a hub's folder."""
