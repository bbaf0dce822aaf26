"""Transposed convolution in one to three dimensions: edges, and layers of networks.

DCGAN (Radford et al. 2016, its generator), U-Net (Ronneberger et al. 2015, up-convolutions; in three dimensions Cicek
et al. 2016) and HiFi-GAN (Kong et al. 2020, the upsampling of its generator, also with an odd factor and output
padding, as vocoders for other sampling rates have it). Channels and lengths are reduced; `full` has the real ones.
"""

from __future__ import annotations

from conformance.problems import edges
from conformance.problems.networks import LAYER
from conformance.problems.networks import OTHERS as OTHER_LAYERS
from conformance.problems.table import Problem, in_turn, table

BASIC = table(
    "standard",
    edges.FULL_CARE,
    {
        "convt.plain": "convt n2 c8 h5 w6 k6 r3 s3 u2 p1 o1 b1",
        "convt.groups": "convt n2 c8 h6 w5 k12 r4 s3 u2 p1 g4",
        "convt.asymmetric-all": "convt n2 c6 h5 w7 k10 r3 s4 u3x2 p0:1x2:1 d2x1 o1x0 g2 b1",
        "convt.rank1": "convt n2 c8 w11 k6 s5 u3 p1 o2 b1",
        "convt.rank3": "convt n2 c4 d3 h4 w3 k6 t2 r3 s3 u2 p0x1x1 o1 b1",
    },
)

VALUES = (
    *table(
        "standard",
        (
            "fp32 nchw,nhwc bits,special,nonfinite,range,subnormal",
            "bf16,fp16 nhwc nonfinite,range",
            "fp64 nchw bits,nonfinite,range",
            "fp32 nchw mixed,large,small",
            "fp16 nchw large",
        ),
        {"convt.values": "convt n2 c4 h6 w7 k8 r3 s3 p1 g2 b1"},
    ),
    *table(
        "standard",
        ("fp32 nchw special,nonfinite,range,mixed,small", "bf16 nchw nonfinite,range", "fp64 nchw bits"),
        {
            "convt.values-stride": "convt n3 c6 h5 w4 k8 r3 s3 u2 p1 o1 b1",
            "convt.rank1-values": "convt n2 c6 w9 k8 s5 p2 g2 b1",
            "convt.rank3-values": "convt n2 c4 d3 h4 w3 k6 t3 r3 s3 p1 b1",
        },
    ),
)

SHAPE = ("fp32 nchw integer,fixed,nonfinite",)
"""Of a shape: where each product goes, and whether what is not there stays away; values are the matter of `VALUES`."""
SHAPES = in_turn(
    "standard",
    SHAPE,
    edges.OTHERS,
    {
        "convt.doubling": "convt n2 c6 h5 w6 k4 r4 s4 u2 p1",
        "convt.2x2": "convt n2 c6 h5 w4 k5 r2 s2 u2 b1",
        "convt.stride1": "convt n2 c5 h7 w6 k7 r3 s3 p1 b1",
        "convt.pointwise": "convt n2 c9 h5 w6 k7 r1 s1 b1",
        "convt.pointwise-gaps": "convt n2 c6 h4 w5 k5 r1 s1 u3x2 o2x1 b1",
        "convt.gaps": "convt n2 c4 h4 w5 k6 r2 s3 u4x5 b1",
        "convt.gaps-cropped": "convt n2 c4 h5 w4 k6 r2 s2 u4x3 p1:0x0:1 o2x1 b1",
        "convt.output-padding-alone": "convt n2 c5 h4 w3 k4 r3 s3 u3 o2 b1",
        "convt.output-padding-rows": "convt n2 c4 h5 w6 k5 r3 s3 u2 p1 o1x0",
        "convt.output-padding-columns": "convt n2 c4 h6 w5 k5 r3 s3 u2 p1 o0x1 b1",
        "convt.output-padding-part": "convt n2 c4 h4 w5 k3 r3 s4 u3 p0:1x1:1 o2 b1",
        "convt.output-padding-cropped": "convt n2 c4 h4 w5 k3 r5 s5 u3 p2 o2x1 b1",
        "convt.output-padding-of-dilation": "convt n2 c4 h5 w6 k6 r2 s3 u1x2 p1x2 d3 o2 b1",
        "convt.output-padding-of-dilation-alone": "convt n2 c4 h4 w5 k4 r2 s2 d3x2 o2x1 b1",
        "convt.pad-top": "convt n2 c4 h5 w5 k6 r3 s3 u2 p2:0x0 b1",
        "convt.pad-right": "convt n2 c4 h5 w5 k6 r3 s3 u2 p0x0:2",
        "convt.stride-by-axis": "convt n2 c5 h6 w5 k4 r3 s3 u1x3 p1",
        "convt.window-tall": "convt n2 c4 h4 w6 k5 r5 s1 u2x1 p2x0 o1x0",
        "convt.window-wide": "convt n2 c4 h6 w4 k5 r1 s6 u1x2 p0x2",
        "convt.dilation": "convt n1 c4 h6 w7 k6 r3 s3 p2 d2",
        "convt.dilation-stride": "convt n2 c4 h5 w4 k6 r3 s2 u2x3 p1:2x0:1 d2x4 o1x3 g2 b1",
        "convt.stride-divides-dilation": "convt n2 c4 h4 w5 k4 r3 s3 u2 p2 d2 o1",
        "convt.image1x1": "convt n4 c8 h1 w1 k6 r4 s4 b1",
        "convt.image1x1-cropped": "convt n3 c5 h1 w1 k4 r5 s4 u2 p2x1 o1x0",
        "convt.image-row": "convt n2 c6 h1 w9 k4 r3 s3 u2 p1 o1",
        "convt.image-column": "convt n2 c6 h9 w1 k4 r3 s3 u2 p1 o1",
        "convt.window-beyond-image": "convt n2 c4 h2 w3 k4 r5 s7 p1x2 b1",
        "convt.padding-beyond-window": "convt n2 c4 h6 w7 k4 r2 s3 p2:3x3:2",
        "convt.depthwise": "convt n2 c7 h5 w4 k7 r4 s4 u2 p1 g7 b1",
        "convt.depthwise-x2": "convt n2 c5 h4 w5 k10 r3 s3 u2 p1 o1 g5",
        "convt.groups-merge": "convt n2 c12 h4 w4 k4 r3 s3 u2 p1 o1 g4 b1",
        "convt.channel1": "convt n2 c1 h5 w6 k5 r3 s3 u2 p1 o1",
        "convt.filter1": "convt n2 c5 h5 w6 k1 r3 s3 u2 p1 o1 b1",
        "convt.one-product": "convt n1 c1 h3 w5 k1 r1 s1",
        "convt.prime": "convt n3 c7 h5 w7 k5 r3 s3 u2 p1 o1",
        "convt.c127": "convt n1 c127 h3 w3 k5 r3 s3 u2 p1",
        "convt.c129": "convt n1 c129 h3 w3 k4 r2 s2 u2",
        "convt.k127": "convt n1 c5 h3 w3 k127 r3 s3 u2 p1 o1 b1",
        "convt.k129": "convt n1 c4 h3 w4 k129 r2 s2 u2 b1",
        "convt.tail-row": "convt n1 c3 h3 w131 k4 r3 s3 u2 p1 o1",
        "convt.rank1-doubling": "convt n2 c6 w15 k5 s4 u2 p1 b1",
        "convt.rank1-asymmetric": "convt n3 c6 w13 k10 s4 u3 p2:1 d2 o2 g2 b1",
        "convt.rank1-gaps": "convt n2 c5 w8 k4 s2 u5 p0:1 o3 b1",
        "convt.rank1-pointwise": "convt n2 c9 w14 k5 s1 u3 o2",
        "convt.rank1-depthwise": "convt n2 c7 w12 k14 s5 u2 p2 o1 g7",
        "convt.rank1-element": "convt n4 c8 w1 k6 s3 b1",
        "convt.rank1-long": "convt n1 c3 w517 k4 s9 u2 p4 d3",
        "convt.rank1-dilated-output-padding": "convt n2 c4 w9 k3 s3 p1 d4 o3 b1",
        "convt.rank3-asymmetric": "convt n2 c4 d3 h4 w3 k6 t2 r3 s2 u2x1x3 p1:0x0:2x2:1 dil1x2x3 o1x0x2 g2 b1",
        "convt.rank3-by-axis": "convt n1 c4 d4 h3 w4 k4 t3 r2 s4 u3x1x2 p1x0x1 o2x0x1",
        "convt.rank3-dilation": "convt n1 c4 d4 h4 w4 k4 t3 r2 s3 p2x1x1 dil3x1x2 o2x0x1 b1",
        "convt.rank3-2x2x2": "convt n2 c5 d3 h2 w4 k4 t2 r2 s2 u2 b1",
        "convt.rank3-temporal": "convt n2 c6 d4 h4 w5 k5 t4 r1 s1 u2x1x1 p1x0x0",
        "convt.rank3-depthwise": "convt n2 c5 d3 h4 w3 k10 t3 r3 s2 u2 p1x1x0 o1 g5 b1",
        "convt.rank3-voxel": "convt n3 c6 d1 h1 w1 k4 t2 r3 s3 p0x1x1 g2",
        "convt.rank3-gaps": "convt n1 c4 d3 h2 w3 k3 t1 r2 s1 u2x3x2 o1x2x0 b1",
        "convt.rank3-output-padding-plane": "convt n2 c4 d3 h4 w3 k3 t3 r3 s3 u2 p1 o0x1x1 b1",
        "convt.rank3-output-padding-depth": "convt n1 c4 d3 h4 w4 k3 t3 r3 s3 u2 p1 o1x0x0",
    },
)

LONG = table(
    "standard",
    ("fp32 nchw fixed", "bf16 nhwc fixed"),
    {
        "convt.rank1-length70001": "convt n1 c2 w35001 k2 s3 u2 p1 o1 b1",
        "convt.rank3-depth70001": "convt n1 c2 d70001 h1 w1 k2 t2 r1 s1 b1",
    },
)

EMPTY = table(
    "standard",
    ("fp32 nchw fixed", "bf16 nhwc fixed"),
    {
        "empty.convt": "convt n0 c8 h5 w6 k6 r3 s3 u2 p1 o1 b1",
        "empty.convt-groups": "convt n0 c6 h4 w5 k9 r2 s2 u2 g3",
    },
)

LAYERS = in_turn(
    "standard",
    LAYER,
    OTHER_LAYERS,
    {
        "dcgan.project": "convt n2 c100 h1 w1 k64 r4 s4",
        "dcgan.128x64": "convt n1 c128 h4 w4 k64 r5 s5 u2 p2 o1",
        "dcgan.64x32": "convt n1 c64 h8 w8 k32 r5 s5 u2 p2 o1",
        "dcgan.32x3": "convt n1 c32 h16 w16 k3 r5 s5 u2 p2 o1 b1",
        "unet.up.128x64": "convt n1 c128 h14 w14 k64 r2 s2 u2 b1",
        "unet3d.up.32x32": "convt n1 c32 d4 h6 w6 k32 t2 r2 s2 u2 b1",
        "hifigan.up8": "convt n1 c64 w32 k32 s16 u8 p4 b1",
        "hifigan.up2": "convt n1 c32 w256 k16 s4 u2 p1 b1",
        "hifigan.up5": "convt n1 c64 w32 k32 s10 u5 p3 o1 b1",
    },
)

FULL = table(
    "full",
    ("fp32,bf16 nchw fixed",),
    {
        "dcgan.1024x512@4": "convt n16 c1024 h4 w4 k512 r5 s5 u2 p2 o1",
        "dcgan.256x128@16": "convt n16 c256 h16 w16 k128 r5 s5 u2 p2 o1",
        "unet.up.1024x512@28": "convt n1 c1024 h28 w28 k512 r2 s2 u2 b1",
        "unet.up.128x64@196": "convt n1 c128 h196 w196 k64 r2 s2 u2 b1",
        "hifigan.up8@32": "convt n16 c512 w32 k256 s16 u8 p4 b1",
        "hifigan.up2@4096": "convt n4 c64 w4096 k32 s4 u2 p1 b1",
    },
)

PROBLEMS: tuple[Problem, ...] = (*BASIC, *SHAPES, *VALUES, *LONG, *EMPTY, *LAYERS, *FULL)
