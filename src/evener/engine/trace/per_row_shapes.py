"""Symbolic shapes of operations on the inner axes of every row: spectra, matrices, images."""

from __future__ import annotations

from evener.engine.trace.inference import Inference, Shape
from evener.engine.trace.matrices import matrix_of
from evener.engine.trace.shape_rules import Shapes, broadcast, shape_rule
from evener.graph.dims import Size, divide, product
from evener.graph.nodes import Node, Tensor

INNER_AXES = {
    **dict.fromkeys("FFT IFFT RFFT IRFFT IsotonicRegression".split(), 1),
    **dict.fromkeys("FFT2D IFFT2D RFFT2D IRFFT2D".split(), 2),
    **dict.fromkeys("FFT3D IFFT3D RFFT3D IRFFT3D".split(), 3),
    **dict.fromkeys("Eig SelfAdjointEigV2 Svd Qr Lu".split(), 2),
    **dict.fromkeys("MatrixLogarithm MatrixSquareRoot MatrixExponential".split(), 2),
}
"""How many last axes of its input an operation works on; those in front it leaves as they are."""
BATCH_FIRST = """
CropAndResizeGradImage DrawBoundingBoxes DrawBoundingBoxesV2 ExtractGlimpse ExtractGlimpseV2
CombinedNonMaxSuppression MaxPoolWithArgmax ScaleAndTranslate ImageProjectiveTransformV2
FractionalMaxPool FractionalAvgPool
""".split()


def behind(inference: Inference, tensor: Tensor, front: Shape) -> Shape | None:
    """Return a shape that begins with the given sizes; TensorFlow knows the others.

    Args:
        inference: Makes symbols for sizes that TensorFlow does not know.
        tensor: The output.
        front: The sizes of the first axes.
    """
    static = tensor.node.static_shapes[tensor.index]
    if static is None or len(static) < len(front):
        return None
    rest = (
        inference.new_symbol(tensor, axis) if size is None else size
        for axis, size in enumerate(static)
        if axis >= len(front)
    )
    return (*front, *rest)


@shape_rule(*INNER_AXES)
def _of_rows(inference: Inference, node: Node) -> Shapes:
    shape, inner = node.inputs[0].shape, INNER_AXES[node.op]
    if shape is None or len(shape) < inner:
        return None
    return [behind(inference, tensor, shape[: len(shape) - inner]) for tensor in node.outputs]


@shape_rule(*BATCH_FIRST)
def _of_images(inference: Inference, node: Node) -> Shapes:
    shape = node.inputs[0].shape
    if not shape or node.op == "CropAndResizeGradImage":
        return None
    is_pool = node.op.startswith("Fractional")
    return [
        None if is_pool and tensor.index else behind(inference, tensor, shape[:1])
        for tensor in node.outputs
    ]


@shape_rule("CropAndResize")
def _crops(inference: Inference, node: Node) -> Shapes:
    boxes = node.inputs[1].shape
    return None if boxes is None else [behind(inference, node.outputs[0], boxes[:1])]


@shape_rule("CropAndResizeGradImage")
def _image_of_crops(inference: Inference, node: Node) -> Shapes:
    return [node.inputs[3].value]


@shape_rule("CropAndResizeGradBoxes")
def _boxes_of_crops(inference: Inference, node: Node) -> Shapes:
    return [node.inputs[2].shape]


@shape_rule(
    "Cross",
    "XlaDynamicUpdateSlice",
    "FakeQuantWithMinMaxVars",
    "FakeQuantWithMinMaxVarsPerChannel",
    "QuantizeAndDequantizeV3",
    "QuantizeAndDequantizeV4",
    "MaxPoolGradWithArgmax",
    "FractionalMaxPoolGrad",
    "Dilation2DBackpropInput",
    "FakeQuantWithMinMaxArgsGradient",
)
def _as_first(inference: Inference, node: Node) -> Shapes:
    return [node.inputs[0].shape]


@shape_rule("ScaleAndTranslateGrad")
def _as_image(inference: Inference, node: Node) -> Shapes:
    return [node.inputs[1].shape]


@shape_rule("FractionalAvgPoolGrad")
def _of_fractional_average(inference: Inference, node: Node) -> Shapes:
    return [node.inputs[0].value]


@shape_rule("LowerBound", "UpperBound")
def _places(inference: Inference, node: Node) -> Shapes:
    return [node.inputs[1].shape]


@shape_rule("TridiagonalMatMul", "TridiagonalSolve")
def _as_right_side(inference: Inference, node: Node) -> Shapes:
    return [node.inputs[-1].shape]


@shape_rule("BandedTriangularSolve", "MatrixTriangularSolve")
def _broadcast_solution(inference: Inference, node: Node) -> Shapes:
    """The axes in front of the matrices are broadcast."""
    matrix, right = (t.shape for t in node.inputs)
    if matrix is None or right is None:
        return None
    front = broadcast([matrix[:-2], right[:-2]])
    return None if front is None else [(*front, *right[-2:])]


@shape_rule("DenseBincount")
def _counts(inference: Inference, node: Node) -> Shapes:
    shape, size = node.inputs[0].shape, node.inputs[1].value
    return None if shape is None or size is None else [(*shape[:-1], *size)]


@shape_rule("SpaceToBatchND", "BatchToSpaceND")
def _blocks(inference: Inference, node: Node) -> Shapes:
    """Positions of every block become rows: ``block_row * B + sample``, or back."""
    shape, block = node.inputs[0].shape, node.inputs[1].value
    pads = matrix_of(node.inputs[2])
    if shape is None or block is None or pads is None:
        return None
    space = shape[1 : len(block) + 1]
    sizes: list[Size] = []
    is_forward = node.op == "SpaceToBatchND"
    first = shape[0] * product(block) if is_forward else divide(shape[0], product(block))
    for size, factor, row in zip(space, block, pads, strict=True):
        edge = row[0] + row[1]
        found = divide(size + edge, factor) if is_forward else size * factor - edge
        if found is None:
            found = inference.new_symbol(node.outputs[0], len(sizes) + 1)
        sizes.append(found)
    return None if first is None else [(first, *sizes, *shape[len(block) + 1 :])]
