"""An encoder by `torch.export`: as a graph, as ONNX, and as torch's own file."""

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from orchestra_flwr.export.portable import PortableEncoder

INPUT, OUTPUT = "images", "features"
OPSET = 18  # of ONNX: the oldest that torch writes, for TensorRT on older boards


class ExportError(RuntimeError):
    """An encoder that cannot be exported; the text says why."""


def program_of(encoder: PortableEncoder) -> ExportedProgram:
    """An encoder's graph, for any number of images, and for any size if the encoder takes that.

    Raises:
        ExportError: its code cannot be traced that way.
    """
    axes = {0: Dim("batch")}
    if encoder.image_size is None:
        axes |= {2: Dim("height"), 3: Dim("width")}
    try:
        with _quiet():
            program = torch.export.export(
                encoder, (encoder.example(2),), dynamic_shapes={INPUT: axes}
            )
    except Exception as error:  # of many classes, for whatever a user's backbone does
        reason = " ".join(str(error).split())[:200]
        raise ExportError(
            f"torch.export cannot trace the backbone for any number of images (x.shape[0] is "
            f"traced, len(x) is not): {type(error).__name__}: {reason}"
        ) from error
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.nodes:  # a file must not hold the paths of this machine
                node.meta.pop("stack_trace", None)
    return program


def onnx_model(program: ExportedProgram, about: Mapping[str, str]) -> bytes:
    """The graph as an ONNX model, with `about` in its metadata."""
    with _quiet():
        made = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=[INPUT],
            output_names=[OUTPUT],
            verbose=False,
        )
    assert made is not None  # with dynamo=True
    model = made.model_proto
    for key, value in about.items():
        model.metadata_props.add(key=key, value=value)
    return bytes(model.SerializeToString())


def torch_file(program: ExportedProgram) -> bytes:
    """The graph as a file for `torch.export.load` (`.pt2`)."""
    buffer = io.BytesIO()
    with _quiet():
        torch.export.save(program, buffer)
    return buffer.getvalue()


def loaded(file: bytes) -> Callable[[Tensor], Tensor]:
    """The network that `torch.export.load` reads from :func:`torch_file`."""
    with _quiet():
        module: Callable[[Tensor], Tensor] = torch.export.load(io.BytesIO(file)).module()
    return module


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences torch's exporters, which log their steps and deprecations."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
