"""Transformer blocks, and images cut into the patches that they see.

Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021 (arXiv 2010.11929).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

EPSILON = 1e-6  # of the norms, as in ViT's own code
DEVIATION = 0.02  # of initial weights, cut at two deviations


class Block(nn.Module):
    """Attention and a two-layer network, each with a norm before it and a way around it.

    torch's own encoder layer has either no bias at all or one for queries, keys and values, too.

    Args:
        dim: width of the tokens.
        heads: of the attention; they divide `dim`.
        ratio: width of the hidden layer over `dim`.
    """

    def __init__(self, dim: int, heads: int, ratio: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = layer_norm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.norm2 = layer_norm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, ratio * dim), nn.GELU(), nn.Linear(ratio * dim, dim)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, N, dim) to the same shape."""
        tokens = tokens + self._attention(self.norm1(tokens))
        result: Tensor = tokens + self.mlp(self.norm2(tokens))
        return result

    def _attention(self, tokens: Tensor) -> Tensor:
        split = self.qkv(tokens).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        queries, keys, values = split.unbind(0)  # (B, heads, N, dim / heads)
        mixed = F.scaled_dot_product_attention(queries, keys, values)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


def blocks(count: int, dim: int, heads: int) -> nn.Sequential:
    """So many blocks, one after the other."""
    return nn.Sequential(*(Block(dim, heads) for _ in range(count)))


def layer_norm(dim: int) -> nn.LayerNorm:
    """The norm of (..., dim) tokens."""
    return nn.LayerNorm(dim, eps=EPSILON)


def initialise(module: nn.Module) -> None:
    """ViT's initial weights for linear layers, biases 0; to be used with `Module.apply`."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=DEVIATION, a=-2 * DEVIATION, b=2 * DEVIATION)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def patches_of(images: Tensor, size: int) -> Tensor:
    """Images (B, C, H, W) in patches, row by row: (B, H / size * W / size, C * size * size)."""
    batch, channels, height, width = images.shape
    cut = images.reshape(batch, channels, height // size, size, width // size, size)
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
