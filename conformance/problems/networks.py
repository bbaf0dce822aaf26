"""Layers of real networks. At `standard` batch and area are reduced, channels, windows and strides are not.

UNet: Ronneberger et al. 2015, encoder of the ten 3x3 layers that the U-Net reports time. ResNet-50: He et al. 2016;
ResNeXt-50 32x4d: Xie et al. 2017; MobileNetV2: Sandler et al. 2018; EfficientNet-B0: Tan and Le 2019; DeepLab v3:
Chen et al. 2017.
"""

from __future__ import annotations

from conformance.problems.table import in_turn, table

LAYER = ("fp32 nchw integer,fixed",)
OTHERS = (("fp32 nhwc fixed",), ("bf16 nchw fixed",), ("fp16 nchw fixed",))
LARGE = ("fp32 nchw integer,fixed",)

UNET = table(
    "full",
    ("fp32 nchw fixed",),
    {
        "unet.3x64@512": "n4 c3 h512 w512 k64 r3 s3 p1 b1",
        "unet.64x64@512": "n4 c64 h512 w512 k64 r3 s3 p1 b1",
        "unet.64x128@256": "n4 c64 h256 w256 k128 r3 s3 p1 b1",
        "unet.128x128@256": "n4 c128 h256 w256 k128 r3 s3 p1 b1",
        "unet.128x256@128": "n4 c128 h128 w128 k256 r3 s3 p1 b1",
        "unet.256x256@128": "n4 c256 h128 w128 k256 r3 s3 p1 b1",
        "unet.256x512@64": "n4 c256 h64 w64 k512 r3 s3 p1 b1",
        "unet.512x512@64": "n4 c512 h64 w64 k512 r3 s3 p1 b1",
        "unet.512x1024@32": "n4 c512 h32 w32 k1024 r3 s3 p1 b1",
        "unet.1024x1024@32": "n4 c1024 h32 w32 k1024 r3 s3 p1 b1",
    },
)

UNET_REDUCED = in_turn(
    "standard",
    LAYER,
    OTHERS,
    {
        "unet-reduced.3x64": "n2 c3 h64 w64 k64 r3 s3 p1 b1",
        "unet-reduced.64x64": "n1 c64 h48 w48 k64 r3 s3 p1 b1",
        "unet-reduced.64x128": "n1 c64 h32 w32 k128 r3 s3 p1 b1",
        "unet-reduced.128x128": "n1 c128 h24 w24 k128 r3 s3 p1 b1",
        "unet-reduced.128x256": "n1 c128 h16 w16 k256 r3 s3 p1 b1",
        "unet-reduced.256x256": "n1 c256 h12 w12 k256 r3 s3 p1 b1",
        "unet-reduced.256x512": "n1 c256 h8 w8 k512 r3 s3 p1 b1",
        "unet-reduced.512x512": "n1 c512 h8 w8 k512 r3 s3 p1 b1",
        "unet-reduced.512x1024": "n1 c512 h4 w4 k1024 r3 s3 p1 b1",
        "unet-reduced.1024x1024": "n1 c1024 h4 w4 k1024 r3 s3 p1 b1",
    },
)

CLASSIFIERS = in_turn(
    "standard",
    LAYER,
    OTHERS,
    {
        "resnet50.conv1": "n1 c3 h64 w64 k64 r7 s7 u2 p3",
        "resnet50.conv2.reduce": "n2 c256 h14 w14 k64 r1 s1",
        "resnet50.conv2.3x3": "n2 c64 h28 w28 k64 r3 s3 p1",
        "resnet50.conv2.expand": "n2 c64 h14 w14 k256 r1 s1",
        "resnet50.conv3.downsample": "n2 c256 h14 w14 k512 r1 s1 u2",
        "resnet50.conv4.3x3s2": "n1 c256 h14 w14 k256 r3 s3 u2 p1",
        "resnet50.conv5.3x3": "n2 c512 h7 w7 k512 r3 s3 p1",
        "resnext50.conv2": "n1 c128 h28 w28 k128 r3 s3 p1 g32",
        "resnext50.conv3s2": "n1 c256 h28 w28 k256 r3 s3 u2 p1 g32",
        "resnext50.conv4": "n1 c512 h14 w14 k512 r3 s3 p1 g32",
        "resnext50.conv5": "n2 c1024 h7 w7 k1024 r3 s3 p1 g32",
        "mobilenetv2.dw32": "n1 c32 h56 w56 k32 r3 s3 p1 g32",
        "mobilenetv2.dw96s2": "n1 c96 h56 w56 k96 r3 s3 u2 p1 g96",
        "mobilenetv2.dw144": "n1 c144 h28 w28 k144 r3 s3 p1 g144",
        "mobilenetv2.dw576s2": "n2 c576 h14 w14 k576 r3 s3 u2 p1 g576",
        "mobilenetv2.dw960": "n2 c960 h7 w7 k960 r3 s3 p1 g960",
        "efficientnet-b0.dw3": "n1 c32 h56 w56 k32 r3 s3 p1 g32",
        "efficientnet-b0.dw5s2": "n1 c144 h28 w28 k144 r5 s5 u2 p1:2 g144",
        "efficientnet-b0.dw5": "n1 c240 h28 w28 k240 r5 s5 p2 g240",
        "efficientnet-b0.dw5.1152": "n2 c1152 h7 w7 k1152 r5 s5 p2 g1152",
        "deeplabv3.aspp6": "n1 c64 h33 w33 k64 r3 s3 p6 d6",
        "deeplabv3.aspp12": "n1 c64 h33 w33 k64 r3 s3 p12 d12",
        "deeplabv3.aspp18": "n1 c64 h33 w33 k64 r3 s3 p18 d18",
    },
)

CLASSIFIERS_FULL = table(
    "full",
    LARGE,
    {
        "resnet50.conv1@224": "n16 c3 h224 w224 k64 r7 s7 u2 p3",
        "resnet50.conv2.3x3@56": "n16 c64 h56 w56 k64 r3 s3 p1",
        "resnet50.conv4.3x3s2@28": "n16 c256 h28 w28 k256 r3 s3 u2 p1",
        "resnet50.conv5.3x3@7": "n16 c512 h7 w7 k512 r3 s3 p1",
        "resnext50.conv2@56": "n16 c128 h56 w56 k128 r3 s3 p1 g32",
        "resnext50.conv3s2@56": "n16 c256 h56 w56 k256 r3 s3 u2 p1 g32",
        "mobilenetv2.dw96s2@112": "n16 c96 h112 w112 k96 r3 s3 u2 p1 g96",
        "efficientnet-b0.dw5@28": "n16 c240 h28 w28 k240 r5 s5 p2 g240",
        "deeplabv3.aspp12@65": "n2 c256 h65 w65 k256 r3 s3 p12 d12",
    },
)
