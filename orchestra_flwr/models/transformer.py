"""Transformer blocks, and images cut into the patches that they see.

Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021 (arXiv 2010.11929).
"""

import torch.nn.functional as F
from torch import Tensor, nn

EPSILON = 1e-6  # of the norms, as in ViT's own code
DEVIATION = 0.02  # of initial weights, cut at two deviations


class Block(nn.Module):
    """Attention and a two-layer network, each with a norm before it and a residual connection.

    torch's own encoder layer cannot leave out just the bias of queries, keys and values.

    Args:
        heads: of the attention; they divide `dim`.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = layer_norm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.norm2 = layer_norm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, N, dim) to the same shape."""
        tokens = tokens + self.out(attention(self.qkv(self.norm1(tokens)), self.heads))
        result: Tensor = tokens + self.mlp(self.norm2(tokens))
        return result


def attention(qkv: Tensor, heads: int) -> Tensor:
    """(B, N, 3 * dim) queries, keys and values to (B, N, dim)."""
    width = qkv.shape[2] // (3 * heads)
    heads_apart = qkv.reshape(*qkv.shape[:2], 3, heads, width).permute(2, 0, 3, 1, 4)
    queries, keys, values = heads_apart.unbind(0)  # (B, heads, N, dim / heads)
    return F.scaled_dot_product_attention(queries, keys, values).transpose(1, 2).flatten(2)


def check_heads(width: int, heads: int) -> None:
    """Raises ValueError unless the heads divide the width of the tokens."""
    if width % heads:
        raise ValueError(f"model.heads={heads}: must divide model.width={width}")


def blocks(count: int, dim: int, heads: int) -> nn.Sequential:
    """A sequence of `count` blocks."""
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
