"""cuDNN through NVIDIA's nvidia-cudnn-frontend (its graph API in Python), on torch's CUDA tensors.

A problem becomes a graph of conv_fprop, conv_dgrad or conv_wgrad for its sizes and strides, with the bias in it; its
gradient is a reduction. Of the engines that cuDNN's heuristics rank the first that builds is taken, but none with notes
in EXCLUDED: what is left adds products of inputs as given in fp32 (fp64). On fp32, engines with the note TENSOR_CORE
compute in TF32; `cudnn-cuda-tf32` has them. Not taken: empty batches (sizes are positive); operands that begin at no
multiple of 16 bytes, the alignment that the frontend declares (default_alignment); a bias or a filter with strides
that cuDNN ignores (docs/findings); pooling, which the Python frontend does not have.
"""

import threading
from functools import lru_cache

import cudnn
import torch

from conformance import Contract, Implementation, Unsupported, torch_arrays
from conformance.implementations.windows import windows

try:
    VERSION = cudnn.backend_version_string()
except RuntimeError as problem:  # Unable to find symbol cudnnGetVersion
    raise ModuleNotFoundError(f"no libcudnn (nvidia-cudnn-cu13): {problem}", name="nvidia.cudnn") from None

Type, Note = cudnn.data_type, cudnn.numerical_note
TYPES = {torch.float32: Type.FLOAT, torch.float64: Type.DOUBLE, torch.float16: Type.HALF, torch.bfloat16: Type.BFLOAT16}
EXCLUDED = [Note.DOWN_CONVERT_INPUTS, Note.REDUCED_PRECISION_REDUCTION, Note.FFT, Note.WINOGRAD]
EXCLUDED += [Note.WINOGRAD_TILE_4x4, Note.WINOGRAD_TILE_6x6, Note.WINOGRAD_TILE_13x13]
MODES = [cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK]
threads = threading.local()


def handle():  # one for each thread, on torch's stream
    if not hasattr(threads, "handle"):
        threads.handle = cudnn.create_handle()
    cudnn.set_stream(threads.handle, torch.cuda.current_stream().cuda_stream)
    return threads.handle


@lru_cache(maxsize=8)  # a plan takes half a MiB, and milliseconds to build
def build(thread, operation, layouts, options, excluded):
    """Build a graph for one thread; `layouts` are sizes, strides and dtype of the operands, the result last."""
    *inputs, (sizes, strides, dtype) = layouts
    wide = Type.DOUBLE if dtype == torch.float64 else Type.FLOAT
    graph = cudnn.pygraph(intermediate_data_type=wide, compute_data_type=wide, handle=handle())
    operands = [graph.tensor(dim=d, stride=s, data_type=TYPES[t], uid=i) for i, (d, s, t) in enumerate(inputs)]
    y = getattr(graph, operation)(*operands[:2], **dict(options))
    if len(operands) == 3:
        y = graph.bias(y, operands[2])
    y.set_output(True).set_data_type(TYPES[dtype]).set_dim(sizes).set_stride(strides).set_uid(len(inputs))
    try:
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans(MODES)
        graph.deselect_numeric_notes(excluded)
        graph.check_support()
        graph.build_plans()
    except cudnn.cudnnGraphNotSupportedError as problem:
        raise Unsupported(f"{operation}: {str(problem).partition(' (')[0]}") from None
    return graph, graph.get_workspace_size()


def run(operation, operands, options, excluded=()):
    if any(t.data_ptr() % 16 for t in operands):
        raise Unsupported("an operand does not begin at a multiple of 16 bytes")
    layouts = tuple((tuple(t.shape), t.stride(), t.dtype) for t in operands)
    graph, size = build(threading.get_ident(), operation, layouts, tuple(options.items()), tuple(excluded))
    workspace = torch.empty(max(1, size), dtype=torch.uint8, device="cuda")
    graph.execute(dict(enumerate(operands)), workspace, handle=handle())


def register(name, dtypes, contract, tensor_cores):
    impl = Implementation(name, "cuda", torch_arrays("cuda"), contract, VERSION, unsafe=("fork",))
    takes = {"dtypes": dtypes, "layouts": ("nchw", "nhwc"), "when": lambda p: p.n > 0}

    def convolve(operation, a, b, sizes, layout, stride, padding, dilation, bias=()):
        order = torch.contiguous_format if layout == "nchw" else torch.channels_last
        result = torch.empty(sizes, dtype=a.dtype, device=a.device, memory_format=order)
        if (bias and bias[0].stride(1) != 1) or (operation != "conv_wgrad" and b.stride(2) < b.stride(3)):
            raise Unsupported("strides of a bias, or of a filter whose rows and columns have changed places")
        before, after = zip(*padding, strict=True)
        options = {"pre_padding": before, "post_padding": after, "stride": stride, "dilation": dilation}
        excluded = EXCLUDED if tensor_cores or a.dtype != torch.float32 else [*EXCLUDED, Note.TENSOR_CORE]
        run(operation, (a, b, *bias, result), options, excluded)
        return result if layout == "nchw" else result.permute(0, 2, 3, 1)

    def nchw(layout, *tensors):
        return tensors if layout == "nchw" else [t.permute(0, 3, 1, 2) for t in tensors]

    @impl.implements("conv_forward", **takes)
    def conv_forward(x, w, bias, *, stride, padding, dilation, layout):
        x, w = nchw(layout, x, w)
        out = (axis.outputs for axis in windows(x.shape[2:], w.shape[2:], stride, padding, dilation))
        more = () if bias is None else (bias[None, :, None, None],)
        return convolve("conv_fprop", x, w, (len(x), len(w), *out), layout, stride, padding, dilation, more)

    @impl.implements("conv_backward_data", **takes)
    def conv_backward_data(dy, w, *, stride, padding, dilation, groups, layout, input_size):
        dy, w = nchw(layout, dy, w)
        sizes = (len(dy), w.shape[1] * groups, *input_size)
        return convolve("conv_dgrad", dy, w, sizes, layout, stride, padding, dilation)

    @impl.implements("conv_backward_weight", **takes)
    def conv_backward_weight(x, dy, *, stride, padding, dilation, groups, layout, kernel_size, with_bias):
        x, dy = nchw(layout, x, dy)
        sizes = (dy.shape[1], x.shape[1] // groups, *kernel_size)
        dw = convolve("conv_wgrad", x, dy, sizes, layout, stride, padding, dilation)
        if not with_bias:
            return dw
        dbias = dy.new_empty((1, dy.shape[1], 1, 1), dtype=torch.promote_types(dy.dtype, torch.float32))
        run("reduction", (dy, dbias), {"mode": cudnn.reduction_mode.ADD})  # in fp32, and of NHWC strides, or refused
        return dw, dbias.flatten().to(dy.dtype)

    return impl


exact = register("cudnn-cuda", ("fp32", "fp64", "fp16", "bf16"), Contract(), tensor_cores=False)
exact.variant("heuristics=fallback", prepare=lambda: MODES.insert(0, cudnn.heur_mode.FALLBACK))
exact.variant("deterministic", prepare=lambda: EXCLUDED.append(Note.NONDETERMINISTIC))
tf32 = register("cudnn-cuda-tf32", ("fp32",), Contract(inputs="tf32"), tensor_cores=True)
