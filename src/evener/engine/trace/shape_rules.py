"""Symbolic shapes of outputs, by type of operation; what has no rule keeps TensorFlow's sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evener.engine.trace.inference import (
    SHAPE_RULES,
    UNLIKE_ELEMENTS,
    Inference,
    Shape,
    ShapeRule,
    of_any_length,
)
from evener.engine.trace.matrices import matrix_of
from evener.engine.trace.row_loops import list_length
from evener.graph.dims import (
    Dim,
    Size,
    divide,
    evaluate,
    is_at_least,
    product,
    symbol,
    symbols_of,
)
from evener.graph.nodes import Node, Tensor, constant_array

Shapes = Sequence["Shape | None"] | None


def shape_rule(*ops: str) -> Callable[[ShapeRule], ShapeRule]:
    """Register a rule for types of operations."""

    def register(rule: ShapeRule) -> ShapeRule:
        for op in ops:
            SHAPE_RULES[op] = rule
        return rule

    return register


# All outputs have the shape of the first input.
SAME_AS_FIRST = """
Abs Acos Acosh AddN Angle Asin Asinh Atan Atanh BatchNormWithGlobalNormalization BesselI0 BesselI0e
BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1
BiasAdd Bucketize Cast Ceil CheckNumerics CheckNumericsV2 ClipByValue Conj Cos Cosh Cumprod Dawsn
Expint FresnelCos FresnelSin PopulationCount Spence StaticRegexReplace StaticRegexFullMatch
StringLength StringStrip Cumsum CumulativeLogsumexp Digamma Elu EluGrad
EnsureShape Erf Erfc Erfinv Exp Expm1 FakeQuantWithMinMaxArgs Floor Identity IdentityN Inv Invert
IsFinite IsInf IsNan LRN LRNGrad LeakyRelu LeakyReluGrad Lgamma Log Log1p LogSoftmax LogicalNot
MatrixBandPart MatrixInverse Cholesky MatrixSetDiag MatrixSetDiagV3 Ndtri Neg OnesLike
PreventGradient QuantizeAndDequantizeV2 Reciprocal Relu Relu6 Relu6Grad ReluGrad Reverse
ReverseSequence ReverseV2 Rint Roll Round Rsqrt RsqrtGrad Selu SeluGrad Sigmoid SigmoidGrad Sign
Sin Sinh Snapshot Softmax Softplus SoftplusGrad Softsign SoftsignGrad Sqrt SqrtGrad Square
StopGradient Tan Tanh TanhGrad TensorScatterAdd TensorScatterUpdate TensorScatterMax
TensorScatterMin TensorScatterSub ZerosLike InvGrad ReciprocalGrad MaxPoolGrad MaxPool3DGrad
MaxPoolGradV2 StringToNumber StringToHashBucketFast StringToHashBucketStrong LookupTableFind
AsString StringLower StringUpper DebugIdentityV3
AdjustContrastv2 AdjustHue AdjustSaturation HSVToRGB RGBToHSV
""".split()

BROADCASTING = """
Add AddV2 ApproximateEqual Atan2 Betainc BitwiseAnd BitwiseOr BitwiseXor Complex Div DivNoNan Equal
FloorDiv FloorMod Greater GreaterEqual Igamma Igammac IgammaGradA LeftShift Less LessEqual
LogicalAnd LogicalOr Maximum Minimum Mod Mul MulNoNan NextAfter NotEqual Polygamma Pow
RandomGammaGrad RealDiv RightShift SelectV2 SquaredDifference Sub TruncateDiv TruncateMod Xdivy
Xlog1py Xlogy Zeta
""".split()

REDUCTIONS = "Sum Mean Max Min Prod All Any EuclideanNorm".split()


@shape_rule(*SAME_AS_FIRST)
def _same(inference: Inference, node: Node) -> Shapes:
    if node.op == "IdentityN":
        return [t.shape for t in node.inputs]
    if node.op == "AddN":
        return [next((t.shape for t in node.inputs if t.shape is not None), None)]
    return [node.inputs[0].shape] * len(node.outputs)


@shape_rule("Real", "Imag", "ComplexAbs", "Angle")
def _of_complex(inference: Inference, node: Node) -> Shapes:
    return [node.inputs[0].shape]


@shape_rule("Bitcast")
def _bitcast(inference: Inference, node: Node) -> Shapes:
    is_same = node.inputs[0].dtype.size == node.outputs[0].dtype.size
    return [node.inputs[0].shape] if is_same else None


@shape_rule("LookupTableFindV2", "LookupTableFind")
def _same_as_second(inference: Inference, node: Node) -> Shapes:
    return [node.inputs[1].shape]


@shape_rule(*BROADCASTING)
def _broadcast(inference: Inference, node: Node) -> Shapes:
    shape = broadcast([t.shape for t in node.inputs])
    return None if shape is None else [shape]


@shape_rule("Select")
def _select(inference: Inference, node: Node) -> Shapes:
    return [node.inputs[1].shape or node.inputs[2].shape]


def broadcast(shapes: Sequence[Shape | None]) -> Shape | None:
    """Return the shape of an elementwise result, None if it is not certain."""
    if any(shape is None for shape in shapes):
        return None
    known: list[Shape] = [shape for shape in shapes if shape is not None]
    rank = max(len(shape) for shape in known)
    result: list[Size] = []
    for axis in range(-rank, 0):
        sizes = {shape[axis] for shape in known if len(shape) >= -axis} - {1}
        if len(sizes) > 1:
            # One of two sizes is 1, or they are equal: not known before the step runs, unless
            # one of them is a number.
            numbers = {size for size in sizes if isinstance(size, int)}
            if len(numbers) != 1:
                return None
            sizes = numbers
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


@shape_rule(*REDUCTIONS, "ArgMax", "ArgMin")
def _reduction(inference: Inference, node: Node) -> Shapes:
    shape, axes = node.inputs[0].shape, node.inputs[1].value
    if shape is None or axes is None:
        return None
    gone = reduced_axes(shape, axes)
    if gone is None:
        return None
    if node.bool_attr("keep_dims"):
        return [tuple(1 if k in gone else size for k, size in enumerate(shape))]
    return [tuple(size for k, size in enumerate(shape) if k not in gone)]


def reduced_axes(shape: Shape, axes: Shape | None) -> set[int] | None:
    """Return the axes over which a reduction goes, counted from the front."""
    if axes is None or not all(isinstance(axis, int) for axis in axes):
        return None
    return {axis % len(shape) for axis in axes if isinstance(axis, int)} if shape else set()


@shape_rule("L2Loss", "Rank", "Size")
def _scalar(inference: Inference, node: Node) -> Shapes:
    return [()]


@shape_rule("MatMul", "SparseMatMul")
def _matmul(inference: Inference, node: Node) -> Shapes:
    a, b = (t.shape for t in node.inputs)
    if a is None or b is None:
        return None
    rows = a[1] if node.bool_attr("transpose_a") else a[0]
    columns = b[0] if node.bool_attr("transpose_b") else b[1]
    return [(rows, columns)]


@shape_rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _batch_matmul(inference: Inference, node: Node) -> Shapes:
    a, b = (t.shape for t in node.inputs)
    if a is None or b is None:
        return None
    outer = broadcast([a[:-2], b[:-2]])
    if outer is None:
        return None
    rows = a[-1] if node.bool_attr("adj_x") else a[-2]
    columns = b[-2] if node.bool_attr("adj_y") else b[-1]
    return [(*outer, rows, columns)]


@shape_rule("Einsum")
def _einsum(inference: Inference, node: Node) -> Shapes:
    left, right = node.text_attr("equation").split("->")
    if "." in left + right:
        return None
    sizes: dict[str, Size] = {}
    for labels, tensor in zip(left.split(","), node.inputs, strict=True):
        if tensor.shape is None or len(labels) != len(tensor.shape):
            return None
        for label, size in zip(labels, tensor.shape, strict=True):
            if sizes.get(label, 1) == 1:
                sizes[label] = size
    return [tuple(sizes[label] for label in right)]


@shape_rule("Reshape")
def _reshape(inference: Inference, node: Node) -> Shapes:
    wanted, shape = node.inputs[1].value, node.inputs[0].shape
    if wanted is None:
        return None
    wanted = _without_minus_one(inference, node.outputs[0], wanted, shape)
    if -1 in wanted:
        place = wanted.index(-1)
        rest = None
        if shape is not None:
            known = product(s for s in wanted if s != -1)
            rest = divide(_as_number(inference, product(shape)), known)
            rest = divide(product(shape), known) if rest is None else rest
        if rest is None:
            rest = inference.new_symbol(node.outputs[0], place)
        wanted = (*wanted[:place], rest, *wanted[place + 1 :])
    return [wanted if shape is None else _with_samples(inference, shape, wanted)]


def _without_minus_one(
    inference: Inference, result: Tensor, wanted: Shape, before: Shape | None
) -> Shape:
    """Return sizes with symbols of the result for numbers that may be -1, which means the rest.

    A number that is computed from data may be -1, unless an axis has that size already.

    Args:
        inference: Says which symbols are numbers that are computed from data.
        result: The tensor that has these sizes.
        wanted: Sizes that a program asks for.
        before: The shape that the operation was given.
    """
    sizes = {name for size in before or () for name in symbols_of(size)}
    return tuple(
        size
        if symbols_of(size) <= sizes or inference.is_made_of_sizes(size)
        else inference.new_symbol(result, axis)
        for axis, size in enumerate(wanted)
    )


def _as_number(inference: Inference, size: Size) -> Size:
    """Return a size as a number, where the step was traced for batches of one size."""
    if inference.num_samples is None or symbols_of(size) - {"B"}:
        return size
    return evaluate(size, {"B": inference.num_samples})


def _with_samples(inference: Inference, before: Shape, after: Shape) -> Shape:
    """Return a shape with the axis that counts samples, where a program gave its size as a number.

    Elements stay in their order, so it is the axis with as many of them in front and behind.
    """
    numbers = [_as_number(inference, size) for size in before]
    counting = [axis for axis, size in enumerate(before) if symbols_of(size)]
    is_given = all(isinstance(size, int) for size in (*numbers, *after))
    if inference.num_samples is None or len(counting) != 1 or not is_given:
        return after
    (place,) = counting
    rows = divide(before[place], symbol("B"))
    front, behind = product(numbers[:place]), product(numbers[place + 1 :])
    for axis, size in enumerate(after):
        outer = divide(front, product(after[:axis]))
        inner = None if rows is None else divide(rows * behind, product(after[axis + 1 :]))
        if outer is None or inner is None or size != inference.num_samples * outer * inner:
            continue
        return (*after[:axis], symbol("B") * outer * inner, *after[axis + 1 :])
    return after


@shape_rule("BroadcastTo", "Fill")
def _to_shape(inference: Inference, node: Node) -> Shapes:
    return [node.inputs[1 if node.op == "BroadcastTo" else 0].value]


@shape_rule(
    "StatelessRandomUniformV2",
    "StatelessRandomNormalV2",
    "StatelessTruncatedNormalV2",
    "StatelessRandomUniformFullIntV2",
    "StatelessRandomUniformIntV2",
    "StatelessRandomUniform",
    "StatelessRandomNormal",
    "StatelessTruncatedNormal",
    "StatelessRandomUniformInt",
    "StatelessRandomUniformFullInt",
    "StatelessRandomGammaV2",
    "StatelessRandomGammaV3",
    "StatelessRandomPoisson",
    "StatelessRandomBinomial",
    "StatelessParameterizedTruncatedNormal",
    "RandomUniform",
    "RandomStandardNormal",
    "RandomUniformInt",
    "TruncatedNormal",
    "Empty",
)
def _of_first_value(inference: Inference, node: Node) -> Shapes:
    return [node.inputs[0].value]


@shape_rule("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput")
def _input_gradient(inference: Inference, node: Node) -> Shapes:
    return [node.inputs[0].value]


@shape_rule("AvgPoolGrad", "AvgPool3DGrad", "StridedSliceGrad")
def _pool_gradient(inference: Inference, node: Node) -> Shapes:
    return [node.inputs[0].value]


@shape_rule("ResizeBilinearGrad", "ResizeNearestNeighborGrad", "ResizeBicubicGrad")
def _resize_gradient(inference: Inference, node: Node) -> Shapes:
    shape = node.inputs[0].shape
    return None if shape is None else [(shape[0], *_unknown(inference, node, 1))]


def _unknown(inference: Inference, node: Node, first: int) -> Shape:
    static = node.static_shapes[0]
    assert static is not None
    return tuple(
        inference.new_symbol(node.outputs[0], first + k) if size is None else size
        for k, size in enumerate(static[first:])
    )


@shape_rule(
    "Conv2D",
    "Conv3D",
    "DepthwiseConv2dNative",
    "MaxPool",
    "MaxPoolV2",
    "MaxPool3D",
    "AvgPool",
    "AvgPool3D",
    "FusedBatchNormV3",
    "FusedBatchNorm",
    "FusedBatchNormGradV3",
    "ResizeBilinear",
    "ResizeNearestNeighbor",
    "ResizeBicubic",
    "ResizeArea",
    "SpaceToDepth",
    "DepthToSpace",
    "ExtractImagePatches",
    "Dilation2D",
    "ImageProjectiveTransformV3",
)
def _batch_first(inference: Inference, node: Node) -> Shapes:
    """The first axis counts samples as that of the input does; TensorFlow knows the others."""
    shape = node.inputs[0].shape
    found: list[Shape | None] = []
    for tensor, static in zip(node.outputs, node.static_shapes, strict=True):
        if shape is None or static is None or not static or static[0] is not None:
            found.append(None)
            continue
        rest: list[Size] = []
        for k, size in enumerate(static[1:], 1):
            found_size = _windows(node, k) if size is None else size
            rest.append(inference.new_symbol(tensor, k) if found_size is None else found_size)
        same_rank = len(static) == len(shape)
        if same_rank and node.op not in _CHANGES_OTHER_AXES:
            rest = [s if s is not None else shape[k] for k, s in enumerate(static[1:], 1)]
        if tensor.index and node.op.startswith("FusedBatchNorm"):
            found.append(None)
            continue
        found.append((shape[0], *rest))
    return found


_CONVOLUTIONS = frozenset({"Conv2D", "Conv3D", "DepthwiseConv2dNative"})


def _windows(node: Node, axis: int) -> int | None:
    """Return the windows of a convolution along an axis that TensorFlow takes for unknown."""
    images, kernel = (t.shape for t in node.inputs) if node.op in _CONVOLUTIONS else (None, None)
    strides, dilations = node.ints_attr("strides"), node.ints_attr("dilations")
    is_last = node.text_attr("data_format") in ("NHWC", "NDHWC")
    if images is None or kernel is None or not is_last or axis >= len(images) - 1:
        return None
    size, extent, stride = images[axis], kernel[axis - 1], strides[axis]
    if not isinstance(size, int) or not isinstance(extent, int):
        return None
    if node.text_attr("padding") == "SAME":
        return -(-size // stride)
    if node.text_attr("padding") != "VALID":
        return None
    covered = (extent - 1) * dilations[axis] + 1
    return max(0, (size - covered) // stride + 1)


_CHANGES_OTHER_AXES = frozenset(
    {"ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic", "ResizeArea", "SpaceToDepth"}
    | {"DepthToSpace", "ExtractImagePatches"}
    | {"Conv2D", "Conv3D", "DepthwiseConv2dNative", "MaxPool", "MaxPoolV2", "MaxPool3D"}
    | {"AvgPool", "AvgPool3D", "Dilation2D", "ImageProjectiveTransformV3"}
)


@shape_rule("TopKV2", "TopK")
def _top_k(inference: Inference, node: Node) -> Shapes:
    shape = node.inputs[0].shape
    count = node.inputs[1].value if node.op == "TopKV2" else (node.int_attr("k"),)
    if not shape or count is None:
        return None
    return [(*shape[:-1], *count)] * 2


@shape_rule("Pad", "PadV2", "MirrorPad")
def _pad(inference: Inference, node: Node) -> Shapes:
    shape, pads = node.inputs[0].shape, matrix_of(node.inputs[1])
    if shape is None or pads is None:
        return None
    return [tuple(size + (row[0] + row[1]) for size, row in zip(shape, pads, strict=True))]


@shape_rule("MirrorPadGrad")
def _pad_gradient(inference: Inference, node: Node) -> Shapes:
    shape, pads = node.inputs[0].shape, matrix_of(node.inputs[1])
    if shape is None or pads is None:
        return None
    return [tuple(size - (row[0] + row[1]) for size, row in zip(shape, pads, strict=True))]


def constant(tensor: Tensor) -> list[int] | None:
    """Return the integers of a constant of any rank, flat, or None if it is none."""
    array = constant_array(tensor)
    if array is not None:
        return [int(n) for n in array.ravel()]
    numbers = [n for n in tensor.value or () if isinstance(n, int)]
    return numbers if tensor.value and len(numbers) == len(tensor.value) else None


@shape_rule("MatrixDiagV3", "MatrixDiagPartV3")
def _diagonal(inference: Inference, node: Node) -> Shapes:
    """TensorFlow knows the sizes of a matrix and of diagonals; the axes in front stay."""
    shape, numbers = node.inputs[0].shape, [constant(t) for t in node.inputs[1:-1]]
    diagonals, static = numbers[0], node.static_shapes[0]
    if shape is None or diagonals is None:
        return None
    if diagonals == [0] and node.op == "MatrixDiagV3" and numbers[1:] == [[-1], [-1]]:
        return [(*shape, shape[-1])]
    if diagonals == [0] and node.op == "MatrixDiagPartV3":
        return [shape[:-1]] if shape[-1] == shape[-2] else None
    inner = 1 if node.op == "MatrixDiagV3" and len(set(diagonals)) == 1 else 2
    if static is None or len(shape) < inner or any(size is None for size in static[-inner:]):
        return None
    front = shape[: len(shape) - inner]
    return [(*front, *_unknown(inference, node, len(front)))]


@shape_rule("MatrixDeterminant", "LogMatrixDeterminant")
def _determinant(inference: Inference, node: Node) -> Shapes:
    shape = node.inputs[0].shape
    return None if shape is None else [shape[:-2]] * len(node.outputs)


@shape_rule("MatrixSolve")
def _solution(inference: Inference, node: Node) -> Shapes:
    matrix, right = (t.shape for t in node.inputs)
    if matrix is None or right is None or matrix[:-2] != right[:-2]:
        return None
    return [right]


@shape_rule("BiasAddGrad")
def _bias_gradient(inference: Inference, node: Node) -> Shapes:
    shape = node.inputs[0].shape
    if shape is None:
        return None
    return [(shape[1 if node.text_attr("data_format") == "NCHW" else -1],)]


@shape_rule("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits")
def _cross_entropy(inference: Inference, node: Node) -> Shapes:
    logits, labels = (t.shape for t in node.inputs)
    if node.op == "SoftmaxCrossEntropyWithLogits":
        logits = broadcast([logits, labels])
    return None if logits is None else [logits[:1], logits]


@shape_rule("Transpose", "ConjugateTranspose")
def _transpose(inference: Inference, node: Node) -> Shapes:
    shape, order = node.inputs[0].shape, node.inputs[1].value
    if shape is None or order is None or not all(isinstance(k, int) for k in order):
        return None
    return [tuple(shape[k] for k in order if isinstance(k, int))]


@shape_rule("ExpandDims")
def _expand_dims(inference: Inference, node: Node) -> Shapes:
    shape, where = node.inputs[0].shape, node.inputs[1].value
    if shape is None or where is None or not isinstance(where[0], int):
        return None
    axis = where[0] % (len(shape) + 1)
    return [(*shape[:axis], 1, *shape[axis:])]


@shape_rule("Squeeze")
def _squeeze(inference: Inference, node: Node) -> Shapes:
    shape, axes = node.inputs[0].shape, node.ints_attr("squeeze_dims")
    if shape is None or not axes:
        return None
    gone = {axis % len(shape) for axis in axes}
    return [tuple(size for k, size in enumerate(shape) if k not in gone)]


@shape_rule("Pack")
def _pack(inference: Inference, node: Node) -> Shapes:
    shape = next((t.shape for t in node.inputs if t.shape is not None), None)
    if shape is None:
        return None
    axis = node.int_attr("axis") % (len(shape) + 1)
    return [(*shape[:axis], len(node.inputs), *shape[axis:])]


@shape_rule("Unpack")
def _unpack(inference: Inference, node: Node) -> Shapes:
    shape = node.inputs[0].shape
    if shape is None:
        return None
    axis = node.int_attr("axis") % len(shape)
    return [(*shape[:axis], *shape[axis + 1 :])] * len(node.outputs)


@shape_rule("ConcatV2")
def _concat(inference: Inference, node: Node) -> Shapes:
    shapes, where = [t.shape for t in node.inputs[:-1]], node.inputs[-1].value
    known = [shape for shape in shapes if shape is not None]
    if where is None or len(known) < len(shapes) or not isinstance(where[0], int):
        return None
    axis = where[0] % len(known[0])
    joined: Size = 0
    for shape in known:
        joined = shape[axis] + joined
    return [(*known[0][:axis], joined, *known[0][axis + 1 :])]


@shape_rule("Split")
def _split(inference: Inference, node: Node) -> Shapes:
    where, shape = node.inputs[0].value, node.inputs[1].shape
    if shape is None or where is None or not isinstance(where[0], int):
        return None
    axis = where[0] % len(shape)
    part = divide(shape[axis], len(node.outputs))
    if part is None:
        part = inference.new_symbol(node.outputs[0], axis)
    return [(*shape[:axis], part, *shape[axis + 1 :])] * len(node.outputs)


@shape_rule("SplitV")
def _split_sizes(inference: Inference, node: Node) -> Shapes:
    shape, sizes, where = node.inputs[0].shape, node.inputs[1].value, node.inputs[2].value
    if shape is None or sizes is None or where is None or not isinstance(where[0], int):
        return None
    axis = where[0] % len(shape)
    if not all(inference.is_made_of_sizes(size) for size in sizes):
        # One of them may be -1, and then it is the rest.
        sizes = tuple(inference.new_symbol(tensor, axis) for tensor in node.outputs)
    if -1 in sizes:
        rest: Size = shape[axis]
        for size in sizes:
            if size != -1:
                rest = rest - size
        sizes = tuple(rest if size == -1 else size for size in sizes)
    return [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]


@shape_rule("Slice")
def _slice(inference: Inference, node: Node) -> Shapes:
    shape, begin, size = node.inputs[0].shape, node.inputs[1].value, node.inputs[2].value
    if shape is None or begin is None or size is None:
        return None
    size = _without_minus_one(inference, node.outputs[0], size, shape)
    return [
        tuple(
            n - start if length == -1 else length
            for n, start, length in zip(shape, begin, size, strict=True)
        )
    ]


@shape_rule("StridedSlice")
def _strided_slice(inference: Inference, node: Node) -> Shapes:
    shape = node.inputs[0].shape
    taken = None if shape is None else slices(node, shape)
    if taken is None:
        return None
    sizes: list[Size] = []
    for one in taken:
        if one is None:
            sizes.append(1)
        elif one.length is None:
            sizes.append(inference.new_symbol(node.outputs[0], len(sizes)))
        elif not one.is_index:
            sizes.append(one.length)
    return [tuple(sizes)]


class TakenSlice:
    """What a strided slice takes of one axis.

    Attributes:
        axis: The axis of the input.
        begin: The first row, or None if it is not known.
        stride: The step from row to row.
        length: How many rows, or None if that is not known.
        is_index: Whether the axis vanishes.
        is_whole: Whether it takes all rows in their order.
    """

    __slots__ = ("axis", "begin", "is_index", "is_whole", "length", "stride")

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.begin: Size | None = None
        self.stride = 1
        self.length: Size | None = None
        self.is_index = False
        self.is_whole = False


def slices(node: Node, shape: Shape) -> list[TakenSlice | None] | None:
    """Return what a StridedSlice takes of every axis in order; None for a new axis of size 1."""
    begins, ends, strides = (t.value for t in node.inputs[1:4])
    if strides is None or (begins is None and ends is None):
        return None
    count = len(strides)
    begins = begins or (None,) * count
    ends = ends or (None,) * count
    if len(begins) != count or len(ends) != count:
        return None
    masks = {k: node.int_attr(f"{k}_mask") for k in ("begin", "end", "ellipsis", "new_axis")}
    shrink = node.int_attr("shrink_axis_mask")
    used = sum(not (masks["new_axis"] >> k & 1 or masks["ellipsis"] >> k & 1) for k in range(count))
    taken: list[TakenSlice | None] = []
    axis = 0
    for k in range(count):
        bit = 1 << k
        if masks["ellipsis"] & bit:
            for _ in range(len(shape) - used):
                taken.append(_whole(axis, shape))
                axis += 1
        elif masks["new_axis"] & bit:
            taken.append(None)
        else:
            if axis >= len(shape) or not isinstance(strides[k], int):
                return None
            taken.append(
                _taken(
                    axis,
                    shape[axis],
                    None if masks["begin"] & bit else (begins[k],),
                    None if masks["end"] & bit else (ends[k],),
                    int(strides[k]),  # pyright: ignore[reportArgumentType]
                    is_index=bool(shrink & bit),
                )
            )
            axis += 1
    while axis < len(shape):
        taken.append(_whole(axis, shape))
        axis += 1
    return taken


def _whole(axis: int, shape: Shape) -> TakenSlice:
    one = TakenSlice(axis)
    one.begin, one.length, one.is_whole = 0, shape[axis], True
    return one


def _taken(
    axis: int,
    size: Size,
    begin: tuple[Size | None] | None,
    end: tuple[Size | None] | None,
    stride: int,
    *,
    is_index: bool,
) -> TakenSlice:
    one = TakenSlice(axis)
    one.stride, one.is_index = stride, is_index
    if is_index:
        one.length = 1
        one.begin = None if begin is None else _from_front(begin[0], size)
        return one
    if begin is None and end is None and stride == 1:
        one.begin, one.length, one.is_whole = 0, size, True
        return one
    if stride == 1:
        start = 0 if begin is None else _from_front(begin[0], size)
        stop = size if end is None else _from_front(end[0], size)
        one.begin = start
        if start is not None and stop is not None:
            if isinstance(size, int):
                if isinstance(start, int) and isinstance(stop, int):
                    one.begin = min(max(start, 0), size)
                    one.length = max(0, min(max(stop, 0), size) - one.begin)
            elif _is_within(start, size) and _is_within(stop, size):
                length = stop - start
                # What ends before it begins has no rows.
                one.length = length if is_at_least(length, 0) else None
            one.is_whole = start == 0 and stop == size
        return one
    if isinstance(size, int):
        first = None if begin is None else begin[0]
        last = None if end is None else end[0]
        if not (first is None or isinstance(first, int)) or not (
            last is None or isinstance(last, int)
        ):
            return one
        span = range(size)[slice(first, last, stride)]
        one.length = len(span)
        one.begin = span.start
    return one


def _from_front(place: Size | None, size: Size) -> Size | None:
    if isinstance(place, int) and place < 0:
        return size + place
    return place


def _is_within(place: Size, size: Size) -> bool:
    """Whether a place is in an axis of symbolic size for certain: not behind its end."""
    if place == 0 or place == size:
        return True
    # k*B of n*B rows.
    quotient = divide(place, size) if place != 0 else 0
    if isinstance(quotient, int):
        return 0 <= quotient <= 1
    inverse = divide(size, place)
    return (isinstance(inverse, int) and inverse >= 1) or _is_fraction(place, size)


def _is_fraction(place: Size, size: Size) -> bool:
    if not isinstance(place, Dim) or not isinstance(size, Dim):
        return False
    if len(place.terms) != 1 or len(size.terms) != 1:
        return False
    ((one, k),), ((other, n),) = place.terms.items(), size.terms.items()
    return one == other and 0 <= k <= n


@shape_rule("GatherV2")
def _gather(inference: Inference, node: Node) -> Shapes:
    data, indices = (t.shape for t in node.inputs[:2])
    axis = node.inputs[2].value
    if data is None or indices is None or axis is None or not isinstance(axis[0], int):
        return None
    at, shared = axis[0] % len(data), node.int_attr("batch_dims")
    return [(*data[:at], *indices[shared:], *data[at + 1 :])]


@shape_rule("Gather")
def _old_gather(inference: Inference, node: Node) -> Shapes:
    data, indices = (t.shape for t in node.inputs)
    return None if data is None or indices is None else [(*indices, *data[1:])]


@shape_rule("ResourceGather")
def _resource_gather(inference: Inference, node: Node) -> Shapes:
    indices, static = node.inputs[1].shape, node.static_shapes[0]
    if indices is None or static is None:
        return None
    rest = static[len(indices) :]
    if any(size is None for size in rest):
        return None
    return [(*indices, *(size for size in rest if size is not None))]


@shape_rule("GatherNd")
def _gather_nd(inference: Inference, node: Node) -> Shapes:
    data, indices = (t.shape for t in node.inputs)
    if data is None or not indices or not isinstance(indices[-1], int):
        return None
    return [(*indices[:-1], *data[indices[-1] :])]


@shape_rule("ScatterNd")
def _scatter_nd(inference: Inference, node: Node) -> Shapes:
    return [node.inputs[2].value]


@shape_rule("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")
def _segments(inference: Inference, node: Node) -> Shapes:
    data, ids, count = node.inputs[0].shape, node.inputs[1].shape, node.inputs[2].value
    if data is None or ids is None or count is None:
        return None
    return [(*count, *data[len(ids) :])]


@shape_rule("Tile")
def _tile(inference: Inference, node: Node) -> Shapes:
    shape, times = node.inputs[0].shape, node.inputs[1].value
    if shape is None or times is None:
        return None
    return [tuple(size * n for size, n in zip(shape, times, strict=True))]


@shape_rule("OneHot")
def _one_hot(inference: Inference, node: Node) -> Shapes:
    shape, depth = node.inputs[0].shape, node.inputs[1].value
    if shape is None or depth is None:
        return None
    axis = node.int_attr("axis")
    axis = len(shape) if axis == -1 else axis
    return [(*shape[:axis], depth[0], *shape[axis:])]


@shape_rule("Range")
def _range(inference: Inference, node: Node) -> Shapes:
    start, limit, step = (t.value for t in node.inputs)
    if start is None or limit is None or step is None:
        return None
    stride = step[0]
    if not isinstance(stride, int) or stride < 1:
        return None
    # The operation refuses a limit before the start.
    numbers = (start[0], limit[0])
    if all(isinstance(number, int) for number in numbers):
        return [(len(range(*numbers, stride)),)]  # pyright: ignore[reportArgumentType]
    length = divide(limit[0] - start[0], stride)
    return None if length is None or isinstance(length, int) else [(length,)]


@shape_rule("InTopKV2", "InTopK")
def _in_top_k(inference: Inference, node: Node) -> Shapes:
    return [node.inputs[1].shape]


@shape_rule("CudnnRNNV3")
def _recurrent(inference: Inference, node: Node) -> Shapes:
    """``input, h, c, ...`` to ``output, h, c, reserved, reserved on the host``."""
    (data, hidden, cell), static = (t.shape for t in node.inputs[:3]), node.static_shapes[0]
    if data is None or static is None or static[-1] is None:
        return [None, hidden, cell, None, None]
    return [(*data[:-1], static[-1]), hidden, cell, None, None]


@shape_rule("CudnnRNNBackpropV3")
def _recurrent_gradient(inference: Inference, node: Node) -> Shapes:
    return [tensor.shape for tensor in node.inputs[:4]]


# Tensor lists have the shape of the stacked list; the length has no meaning while they grow.


def _element(inference: Inference, tensor: Tensor) -> Shape | None:
    """Return the shape that an ``element_shape`` argument asks for, if it is complete.

    Where a step is traced for one size of batches, it is a constant with that size in it. What is
    as large, or a multiple, may count samples, and is left open in the parts: nothing is lost by
    that. Of the multiples, most are numbers of features.
    """
    value, array = tensor.value, constant_array(tensor)
    if inference.num_samples is not None and array is not None and tensor.rank == 1:
        sizes = [int(size) for size in array]
        tensor.value = tuple(_as_samples(size, inference.num_samples) for size in sizes)
        value = tuple(symbol("B") if size == inference.num_samples else size for size in sizes)
    if tensor.rank == 0 or value is None or any(size == -1 for size in value):
        return None
    return value


def _as_samples(size: int, num_samples: int) -> Size:
    return symbol("B") * (size // num_samples) if size > 0 and size % num_samples == 0 else size


@shape_rule("EmptyTensorList", "TensorListReserve")
def _new_list(inference: Inference, node: Node) -> Shapes:
    """Nothing is known of a list before the first element is in it."""
    _element(inference, node.inputs[0])
    return [None]


@shape_rule("TensorListFromTensor")
def _list_of_rows(inference: Inference, node: Node) -> Shapes:
    shape = node.inputs[0].shape
    _element(inference, node.inputs[1])
    if shape is None:
        return [None]
    return [shape if isinstance(shape[0], Dim) else of_any_length(shape)]


def _taken_out(
    inference: Inference,
    node: Node,
    element_shape: Tensor,
    *,
    index: int = 0,
    is_stacked: bool = False,
) -> Shape | None:
    """Return the shape of an element; what only the list knows of it gets a symbol there."""
    known, asked = node.inputs[0].shape, _element(inference, element_shape)
    if known is None or known == UNLIKE_ELEMENTS:
        return asked
    taken = node.outputs[index]
    return tuple(
        inference.new_symbol(taken, axis) if inference.is_of_list(size) else size
        for axis, size in enumerate(known[1:], start=int(is_stacked))
    )


@shape_rule("TensorListPushBack", "TensorListSetItem")
def _write(inference: Inference, node: Node) -> Shapes:
    """The elements of a list have one shape, or nothing is known of them."""
    known, item = node.inputs[0].shape, node.inputs[-1].shape
    if item is None or (known is not None and known[1:] != item) or known == UNLIKE_ELEMENTS:
        return [UNLIKE_ELEMENTS]
    keeps = node.op == "TensorListSetItem" and not node.bool_attr("resize_if_index_out_of_bounds")
    length = _known_length(inference, node.inputs[0]) if keeps else None
    return [(length or 1, *item)]


def _known_length(inference: Inference, tensor: Tensor) -> Size | None:
    """Return the length of a list; of a number from data only the list itself is a size."""
    length = list_length(tensor)
    return length if length is not None and inference.is_made_of_sizes(length) else None


@shape_rule("TensorListResize")
def _resized(inference: Inference, node: Node) -> Shapes:
    return [of_any_length(node.inputs[0].shape)]


@shape_rule("TensorListGetItem")
def _get_item(inference: Inference, node: Node) -> Shapes:
    return [_taken_out(inference, node, node.inputs[2])]


@shape_rule("TensorListPopBack")
def _popped(inference: Inference, node: Node) -> Shapes:
    popped = _taken_out(inference, node, node.inputs[1], index=1)
    return [of_any_length(node.inputs[0].shape), popped]


@shape_rule("TensorListStack")
def _stacked(inference: Inference, node: Node) -> Shapes:
    static = node.static_shapes[0]
    element = _taken_out(inference, node, node.inputs[1], is_stacked=True)
    if element is None:
        return None
    length = static[0] if static else None
    if length is None:
        length = _known_length(inference, node.inputs[0])
        length = length or inference.new_symbol(node.outputs[0], 0)
    return [(length, *element)]
