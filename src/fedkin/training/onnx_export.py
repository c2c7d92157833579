"""Trained models in the ONNX format, which other programs and languages run (extra `onnx`)."""

import contextlib
import io
import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.errors import InputError
from fedkin.models.linear import Logistic, Ridge
from fedkin.models.mlp import MLP
from fedkin.version import __version__

if TYPE_CHECKING:
    from fedkin.training.result import Result

OPSET = 18
"""The version of ONNX's operators: older programs than those of 2023 do not know it."""

INPUTS, OUTPUTS, LABEL, PROBABILITIES, PREDICTION = (
    "inputs",
    "outputs",
    "label",
    "probabilities",
    "prediction",
)
"""The names of the exported model's input and results."""


def to_onnx_bytes(result: "Result") -> bytes:
    """Return a model in the ONNX format.

    Its input is called `inputs`, and is what `predict` takes, with any number of points. Classification has
    the results `label` and `probabilities`; regression has `prediction`.
    """
    try:
        import onnx
    except ImportError as error:
        raise InputError(
            "exporting to ONNX needs the package onnx: pip install 'fedkin[onnx]'"
        ) from error
    model = _own_model(result) if result.objective.in_jax else _exported_module(result)
    _add_answer(model.graph, result.classes)
    model.producer_name, model.producer_version = "fedkin", __version__
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def _own_model(result: "Result") -> Any:
    """Write one of fedkin's own models as matrix products; its result is called `outputs`."""
    from onnx import TensorProto, helper

    model, params = result.model, result.params
    if isinstance(model, Logistic | Ridge):
        bias = params["bias"] if model.intercept else np.zeros(())
        layers = [(params["kernel"], bias)]
    elif isinstance(model, MLP):
        layers = [(layer["kernel"], layer["bias"]) for layer in params]
    else:
        raise InputError(
            f"a {type(model).__name__} cannot be exported to ONNX: logistic, ridge and mlp can, and PyTorch "
            "modules"
        )
    graph = helper.make_graph([], "fedkin", [], [])
    images = result.objective.point_dtype == "uint8"
    kind = TensorProto.UINT8 if images else TensorProto.FLOAT
    shape = ["points", *result.point_shape]
    graph.input.append(helper.make_tensor_value_info(INPUTS, kind, shape))
    current = INPUTS
    if images:
        graph.node.append(helper.make_node("Cast", [current], ["floats"], to=TensorProto.FLOAT))
        _constant(graph, "largest", np.float32(255))
        graph.node.append(helper.make_node("Div", ["floats", "largest"], ["scaled"]))
        current = "scaled"
    _constant(graph, "rows", np.array([-1, math.prod(result.point_shape)], np.int64))
    graph.node.append(helper.make_node("Reshape", [current, "rows"], ["features"]))
    current = "features"
    for number, (kernel, bias) in enumerate(layers):
        last = number == len(layers) - 1
        matrix = np.asarray(kernel, np.float32)
        _constant(graph, f"kernel{number}", matrix.reshape(len(matrix), -1))
        _constant(graph, f"bias{number}", np.asarray(bias, np.float32).reshape(-1))
        output = OUTPUTS if last else f"layer{number}"
        names = [current, f"kernel{number}", f"bias{number}"]
        graph.node.append(helper.make_node("Gemm", names, [output]))
        if not last:
            graph.node.append(helper.make_node("Tanh", [output], [f"hidden{number}"]))
            current = f"hidden{number}"
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def _exported_module(result: "Result") -> Any:
    """Let PyTorch export its module; its result is called `outputs`."""
    import onnx
    import torch

    module = result.module().cpu()
    example = torch.from_numpy(np.zeros((2, *result.point_shape), result.objective.point_dtype))
    if example.dtype == torch.uint8:
        raise InputError(
            "a module that was trained on images of bytes cannot be exported: train it on float32"
        )
    written: Any = io.BytesIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # about PyTorch's own future
        try:
            program = torch.onnx.export(
                module,
                (example,),
                input_names=[INPUTS],
                output_names=[OUTPUTS],
                dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
        except Exception as error:
            first = str(error).strip().split("\n")[0]
            raise InputError(
                f"PyTorch cannot export this module to ONNX: {type(error).__name__}: {first}"
            ) from error
        assert program is not None
        program.save(written)
    model = onnx.load_from_string(written.getvalue())
    del model.graph.output[:]
    return model


def _add_answer(graph: Any, classes: np.ndarray | None) -> None:
    """Make labels and probabilities, or predictions, of a graph's outputs."""
    from onnx import TensorProto, helper

    if classes is None:
        _constant(graph, "one", np.array([-1], np.int64))
        graph.node.append(helper.make_node("Reshape", [OUTPUTS, "one"], [PREDICTION]))
        graph.output.append(
            helper.make_tensor_value_info(PREDICTION, TensorProto.FLOAT, ["points"])
        )
        return
    text = classes.dtype.kind not in "iubf"
    values = classes.astype(
        object if text else np.float32 if classes.dtype.kind == "f" else np.int64
    )
    kind = {"O": TensorProto.STRING, "f": TensorProto.FLOAT}.get(
        values.dtype.kind, TensorProto.INT64
    )
    content: Any = [str(each).encode() for each in values] if text else values.tolist()
    graph.initializer.append(helper.make_tensor("classes", kind, [len(classes)], content))
    graph.node.append(helper.make_node("Softmax", [OUTPUTS], [PROBABILITIES], axis=1))
    graph.node.append(helper.make_node("ArgMax", [OUTPUTS], ["number"], axis=1, keepdims=0))
    graph.node.append(helper.make_node("Gather", ["classes", "number"], [LABEL]))
    graph.output.extend(
        [
            helper.make_tensor_value_info(LABEL, kind, ["points"]),
            helper.make_tensor_value_info(
                PROBABILITIES, TensorProto.FLOAT, ["points", len(classes)]
            ),
        ]
    )


def _constant(graph: Any, name: str, value: np.ndarray | np.generic) -> None:
    from onnx import numpy_helper

    graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
