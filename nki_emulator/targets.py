"""What the generations of the NeuronCore can hold and do.

Sizes: "NeuronDevice Architecture Guide" for Trainium/Inferentia2 (192 KiB of SBUF and 16 KiB of PSUM a partition),
Trainium2 (224 KiB) and Trainium3 (256 KiB), Neuron SDK 2.32. A part of SBUF is reserved: the page
"nki.language.tile_size" says so without figures. What is usable, and the alignments, are those of KLR, the public front
end of NKI.
"""

from __future__ import annotations

from dataclasses import dataclass

PARTITIONS = 128
BANK = 2048
"""Bytes of one PSUM bank a partition."""
BANKS = 8
STATIONARY_FREE = 128
MOVING_FREE = 512
BN_STATS_FREE = 512
MAX_DIMENSIONS = 5
"""Of an on-chip access: the partitions and four of the free dimension."""


@dataclass(frozen=True, slots=True)
class Target:
    """One generation: `generation` 2 is trn1, 3 is trn2, 4 is trn3; SBUF in bytes a partition."""

    name: str
    generation: int
    sbuf: int
    """Usable by a kernel."""
    sbuf_total: int


TARGETS = {
    "gen2": Target("gen2", 2, 180224, 192 * 1024),
    "gen3": Target("gen3", 3, 212984, 224 * 1024),
    "gen4": Target("gen4", 4, 245752, 256 * 1024),
}


PLATFORMS = {"trn1": "gen2", "inf2": "gen2", "trn2": "gen3", "trn3": "gen4"}
"""Instances -> the generation of their cores."""


class TileSize:
    """nki.language.tile_size, Neuron SDK 2.32."""

    pmax = PARTITIONS
    psum_fmax = BANK // 4
    psum_bank_fmax = BANK // 4
    psum_bank_fmax_bytes = BANK
    psum_num_banks = BANKS
    gemm_stationary_fmax = STATIONARY_FREE
    gemm_moving_fmax = MOVING_FREE
    bn_stats_fmax = BN_STATS_FREE
    psum_min_align = 4
    sbuf_min_align = 1

    def __init__(self, target: Target) -> None:
        self.sbuf_fmax_bytes = self.total_available_sbuf_size = target.sbuf
        self.sbuf_fmax = target.sbuf // 4
        self.sbuf_size_bytes = target.sbuf_total * PARTITIONS
