"""Gives kernels that compute the same one name, the family, though their own names differ from GPU to GPU.

cuBLAS, cuDNN and NCCL choose kernels by architecture, size and topology. Their kernels are named after what they do.
Names of other kernels lose the architecture, and what templates are only given as numbers: tiles, stages, vectors.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from microbench.traces.recording import unmangled

LONGEST, LONGEST_READ = 200, 4096  # characters of a family, and of a name that are read
OWN = "the program"  # whose kernels are not known to be a library's


class Family(NamedTuple):
    """What a kernel computes, and whose it is. An ``extra`` one is added by a library on some GPUs and not on others,
    such as the sum behind a product that is split along k."""

    name: str
    library: str
    extra: bool = False


ENGINE = r"^(?:_ZN\d+)?(?:sm\d+_xmma|_?\dx_cudnn|cudnn|cutlass|(?:volta|turing|ampere|hopper|blackwell)_)"
# What libraries choose, the first that fits. A group of the pattern may be in the name.
CHOSEN: tuple[tuple[re.Pattern[str], Family], ...] = tuple(
    (re.compile(pattern), Family(*family))
    for pattern, family in (
        (
            r"^nccl(?:Dev)?Kernel_(AllReduce|AllGather|AllToAll|ReduceScatter|Reduce|Broadcast|SendRecv|Generic)",
            (r"NCCL \1", "NCCL"),
        ),
        (r"^nccl(?:Dev)?Kernel", ("NCCL", "NCCL")),
        # Parts of a product, a convolution or an attention that some GPUs do in kernels of their own.
        (
            r"flash_bwd_(?:dot|convert|clear)|splitkv_combine|cudnn::fusion::(?:compute_dot|convert_dq)",
            ("helpers of attention", "attention", True),
        ),
        (
            r"cudnn.*(?:convertTensor|nchwToNhwc|nhwcToNchw|init_device_workspace|ReduceSplitK|splitKreduce|scalePacked)"
            r"|^nhwcAddPadding|^cask(?:_plugin)?__5x_cudnn",
            ("helpers of cuDNN", "cuDNN", True),
        ),
        (
            r"splitK_?[rR]educe|ReduceSplitK|^scal_kernel|cublasLt::epilogue|reduce_1Block_kernel|cublasTransposeParams",
            ("helpers of cuBLAS", "cuBLAS", True),
        ),
        (
            r"(?:sdpa\w*_bprop|sdpa\w*flash_bprop|^(?:\w+::)?flash_bwd|fmha_cutlassB|^fmha\w*(?:bwd|backward))",
            ("attention, backward", "attention"),
        ),
        (
            r"(?:sdpa\w*fprop|^(?:\w+::)?flash_fwd|fmha_cutlassF|^fmha\w*(?:fwd|forward)|cudnn::fusion::.*attention)",
            ("attention", "attention"),
        ),
        (rf"{ENGINE}.*(?:dgrad|Dgrad|bwd_data)", ("convolution, backward by data", "cuDNN")),
        (rf"{ENGINE}.*(?:wgrad|Wgrad|bwd_filter)", ("convolution, backward by weights", "cuDNN")),
        (
            rf"{ENGINE}.*(?:fprop|Fprop|winograd|_s?cudnn_\d)|^(?:implicit|precomputed)_convolve|^conv2d_c\d"
            r"|^(?:_ZN\d+)?cutlass__5x_cudnn",
            ("convolution", "cuDNN"),
        ),
        (r"cudnn.*(?:batchnorm_fw|bn_fw)", ("batch norm", "cuDNN")),
        (r"cudnn.*(?:batchnorm_bw|bn_bw)", ("batch norm, backward", "cuDNN")),
        (
            r"^(?:nvjet_|sm\d+_xmma_gemm|cutlass(?:3x)?_(?:sm)?\d+_|cutlass::Kernel2\b|gemv2[TN]_kernel|gemvNSP_kernel"
            r"|(?:internal::)?gemvx::kernel|gemmk1_kernel|gemmSN_[NT]{2}_kernel|[sdhc]gemm_largek|dot_kernel\b.*cublas"
            r"|(?:maxwell|pascal|volta|turing|ampere|hopper|blackwell)_\w*gemm)",
            ("matrix product", "cuBLAS"),
        ),
    )
)
NAMED = {chosen.name: chosen for _, chosen in CHOSEN}
# Of what is left, whose a kernel is by the begin of its name.
LIBRARIES = (
    ("NCCL ", "NCCL"),
    ("cudnn", "cuDNN"), ("cublas", "cuBLAS"), ("at::", "PyTorch"), ("at_cuda_detail::", "PyTorch"),
    ("c10::", "PyTorch"), ("softmax_warp_", "PyTorch"), ("elementwise_kernel_with_index", "PyTorch"),
    ("cub::", "CUB"), ("thrust::", "Thrust"), ("cupy_", "CuPy"), ("vision::", "torchvision"), ("triton_", "Triton"),
    ("vllm::", "vLLM"), ("flashinfer::", "FlashInfer"),
)  # fmt: skip
# Kernels that compute each element on its own: PyTorch's, and those that Inductor fuses.
ELEMENTWISE = re.compile(r"^at::native::[\w:]*elementwise_kernel|^elementwise_kernel_with_index|^triton_poi_")
NATIVE = re.compile(r"^(?:at|at_cuda_detail|c10|vision)::")
COPIED = re.compile(r" \(\d+\)$")  # of several kernels of the same readable name in a recording
# A compiler's numbers of its kernels: triton_poi_fused_add_7 of Inductor, loop_add_fusion_12 of XLA.
NUMBERED = re.compile(r"^(triton_(?:poi|red|per|tem|for|mm)_\w*?|\w*fusion\w*?|wrapped_\w+?)(?:_\d+)+$")
ARCHITECTURE = re.compile(r"(?<![A-Za-z0-9])sm_?\d{2,3}[af]?(?![A-Za-z0-9])_?|_?(?<![A-Za-z0-9])sm_?\d{2,3}[af]?$")
BUILDS = re.compile(r"\b(?:CUB|THRUST|CCCL)_\w+?::")  # namespaces with a version and the architectures built for
UNNAMED = re.compile(r"\((?:anonymous(?: namespace)?)\)(?:::)?|<unnamed>::|_GLOBAL__N_\w*::")
WITHIN = re.compile(r"\([^()]*\)|\{[^{}]*\}|\[[^\[\]]*\]")  # parameters, lambdas, tags of compilers
NUMBER = re.compile(r"(?<=[<,])\s*(?:-?\d+[uUlL]*|true|false)\s*(?=[,>])")
POLICY = re.compile(r"\bPolicy_?\d{3,4}\b")


@lru_cache(maxsize=1 << 14)
def family(name: str) -> Family:
    """The family of a kernel by its name, mangled or not, with or without its arguments; that of a family's name."""
    if name in NAMED:
        return NAMED[name]
    name = COPIED.sub("", UNNAMED.sub("", name[:LONGEST_READ])).removeprefix("void ").strip()
    if not NATIVE.match(name):
        for pattern, chosen in CHOSEN:
            if found := pattern.search(name):
                return chosen._replace(name=found.expand(chosen.name))
    name = unmangled(name)
    if numbered := NUMBERED.match(name):
        return Family(numbered[1], "Triton" if name.startswith("triton_") else "XLA")
    short = _without_numbers(name)
    library = next((library for begin, library in LIBRARIES if short.startswith(begin)), OWN)
    return Family(short[:LONGEST], library)


def _without_numbers(name: str) -> str:
    """A name without parameters, architectures, and what templates are given as numbers; their types lose the
    namespaces."""
    name = BUILDS.sub("", name.replace("operator()", "").replace("vectorized_templated_", "vectorized_"))
    before = ""
    while before != name:
        before, name = name, WITHIN.sub("", name)
    name = POLICY.sub("Policy", re.sub(r"\bconst\b|&", "", name))
    before = ""
    while before != name:
        before, name = name, re.sub(r"<[\s,]*>", "", re.sub(r"(?<=[<,])\s*,|,\s*(?=>)", "", NUMBER.sub("", name)))
    name = re.sub(r"(?:::\s*)+(?=[,>]|$)|(?<=::)(?:\s*::)+", "", name)
    head, bracket, types = name.partition("<")
    types = re.sub(r"(?<=[<,\s])(?:\w+::)+", "", f"{bracket}{types}")
    whole = re.sub(r"\s*,\s*", ", ", re.sub(r"\s+(?=[,>*]|$)|(?<=<)\s+", "", ARCHITECTURE.sub("", f"{head}{types}")))
    return re.sub(r"\s+", " ", whole).strip() or name


def bare(name: str) -> str:
    """A family's name without the arguments of templates, which our recordings do not have."""
    return name.partition("<")[0].strip()
