"""ONNX models by onnxruntime, on the CPU: features, and 8-bit models by its own quantiser."""

import logging
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from orchestra_flwr.console.quiet_logger import quiet_logger
from orchestra_flwr.export.programs import INPUT, OUTPUT, ExportError
from orchestra_flwr.machine_limits import usable_cpus

ERRORS_ONLY = 3  # of onnxruntime's levels
QUANTISED = ("Conv", "Gemm", "MatMul")
BACKBONE = "'backbone'"  # in the scopes of its nodes; nodes before it handle pixels
SCOPES = "pkg.torch.onnx.name_scopes"


def onnx_features(model: bytes) -> Callable[[Tensor], Tensor]:
    """An ONNX model as a function: (B, C, H, W) uint8 images to (B, dim) float32 features."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    options.intra_op_num_threads = usable_cpus()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])


def quantised(model: bytes, images: Tensor, batch_size: int) -> bytes:
    """The model with 8-bit weights and activations, in QDQ form.

    Convolutions and products of the backbone are quantised: weights by output channel, activations
    symmetrically, in their ranges on `images`. Resizing and normalisation stay as they are.

    Args:
        model: float32.
        images: (N, C, H, W) uint8, like those that the model will see.

    Raises:
        ExportError: the quantiser left all of the backbone in float32.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    batches = ({INPUT: batch.numpy()} for batch in torch.split(images, batch_size))
    with TemporaryDirectory() as folder:
        plain, prepared, result = (Path(folder) / f"{n}.onnx" for n in ("plain", "ready", "int8"))
        plain.write_bytes(model)
        with quiet_logger(None, logging.ERROR):  # it logs advice to the root
            quant_pre_process(plain, prepared, skip_symbolic_shape=True)
            quantize_static(
                prepared,
                result,
                SimpleNamespace(get_next=lambda: next(batches, None)),
                quant_format=QuantFormat.QDQ,
                activation_type=QuantType.QInt8,
                weight_type=QuantType.QInt8,
                op_types_to_quantize=list(QUANTISED),
                # From the plain model: preparing it keeps names, but may drop scopes.
                nodes_to_exclude=_outside_the_backbone(plain),
                per_channel=True,
                extra_options={"ActivationSymmetric": True, "WeightSymmetric": True},
            )
        if not _has_8_bits(result):
            raise ExportError("int8=true: onnxruntime found nothing in this encoder to quantise")
        return result.read_bytes()


def _has_8_bits(file: Path) -> bool:
    import onnx

    return any(node.op_type == "DequantizeLinear" for node in onnx.load(file).graph.node)


def _outside_the_backbone(file: Path) -> list[str]:
    import onnx

    def scopes(node: Any) -> str:
        return next((p.value for p in node.metadata_props if p.key == SCOPES), "")

    graph = onnx.load(file).graph
    return [
        node.name
        for node in graph.node
        if node.op_type in QUANTISED and BACKBONE not in scopes(node)
    ]
