"""Timer, a decoder-only transformer for time series.

Liu, Zhang, Li, Huang, Wang, Long: "Timer: Generative Pre-trained Transformers Are Large Time Series Models",
ICML 2024. The default has two blocks and a head over all tokens, as in the FedA2L paper's experiments. The head
`"next_patch"` is the form of Timer's authors.
"""

import functools
import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feda2l.errors import FedA2LError
from feda2l.models.dropout import Dropout

Head = Literal["flatten", "next_patch"]


class Block(nn.Module):
    """Causal attention and a perceptron, each with a residual connection and a LayerNorm after it (post-norm).

    y = norm1(x + attention(x)); z = norm2(y + contract(gelu(expand(y)))).
    The authors' code writes the perceptron as a 1x1 convolution, which is a linear layer on each token.
    """

    def __init__(self, *, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)
        self.norm2 = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x + self.dropout(self.attend(x)))
        update = self.dropout(self.contract(self.dropout(F.gelu(self.expand(y)))))
        result: Tensor = self.norm2(y + update)
        return result

    def attend(self, x: Tensor) -> Tensor:
        """Return softmax(q k' / sqrt(width / heads)) v per head, over each token itself and all earlier tokens."""
        query, key, value = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(-2, -3)
            for project in (self.query, self.key, self.value)
        )
        chance = self.dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=chance, is_causal=True)
        result: Tensor = self.output(mixed.transpose(-2, -3).flatten(-2))
        return result


class Timer(nn.Module):
    """Timer for time series: 2 causal blocks, 19 layers, 6,514,784 parameters.

    It forecasts [batch, horizon, channels] from windows [batch, length, channels].

    Each channel of each window is a separate sequence (channel independence), so any number of channels works. A
    sequence is normalised by its mean m and its standard deviation s = sqrt(variance + 1e-5) and cut into
    length / patch tokens. Tokens are embedded without bias, and sinusoidal positions are added. The forecast is
    scaled back: f(x) = s g((x - m) / s) + m.

    Args:
        input: (length, channels) of a window; `length` must be a multiple of `patch`.
        horizon: Number of time steps to forecast.
        patch: Time steps per token. The authors fine-tune with patch 96, 8 blocks and width 1024.
        blocks: Number of transformer blocks.
        width: Width of a token (d_model): even, and a multiple of `heads`.
        heads: Number of attention heads.
        hidden: Width of the perceptron in each block.
        dropout: Dropout probability.
        head: `"flatten"` maps all tokens at once to the horizon. `"next_patch"` maps each token to the patch that
            follows it. The last prediction is appended to the window, and the oldest patch is removed, until the
            horizon is reached. That model has 6,330,392 parameters for any horizon.
    """

    def __init__(
        self,
        *,
        input: tuple[int, ...] = (96, 1),
        horizon: int = 96,
        patch: int = 24,
        blocks: int = 2,
        width: int = 512,
        heads: int = 8,
        hidden: int = 2048,
        dropout: float = 0.1,
        head: Head = "flatten",
    ) -> None:
        super().__init__()
        if len(input) != 2:
            raise FedA2LError(f"model.name = 'timer' needs a time series with input (length, channels), got {input}")
        if input[0] < patch or input[0] % patch:
            raise FedA2LError(f"model.name = 'timer' needs windows of a multiple of {patch} time steps, got {input[0]}")
        if width % heads or width % 2:
            raise FedA2LError(f"model.name = 'timer' needs an even width that {heads} heads divide, got {width}")
        if horizon < 1:
            raise FedA2LError(f"model.name = 'timer' needs a horizon of at least 1, got {horizon}")
        if head not in ("flatten", "next_patch"):
            raise FedA2LError(f"model.name = 'timer': head must be 'flatten' or 'next_patch', got {head!r}")
        self.horizon, self.patch = horizon, patch
        self.embed = nn.Linear(patch, width, bias=False)
        self.dropout = Dropout(dropout)
        self.blocks = nn.Sequential(
            *(Block(width=width, heads=heads, hidden=hidden, dropout=dropout) for _ in range(blocks))
        )
        self.norm = nn.LayerNorm(width)
        self.rolls = head == "next_patch"
        self.head = nn.Linear(width, patch) if self.rolls else nn.Linear(input[0] // patch * width, horizon)

    def forward(self, x: Tensor) -> Tensor:
        return self.roll_out(x) if self.rolls else self._rescaled(x, flat=True)

    def encode(self, sequences: Tensor) -> Tensor:
        """Encode [sequences, length] as [sequences, tokens, width]. A token depends on its own and earlier patches."""
        tokens = self.embed(sequences.unflatten(-1, (-1, self.patch)))
        tokens = tokens + positions(tokens.shape[-2], tokens.shape[-1], tokens.device, tokens.dtype)
        result: Tensor = self.norm(self.blocks(self.dropout(tokens)))
        return result

    def next_patches(self, x: Tensor) -> Tensor:
        """Predict the patch after each patch of the windows, [batch, length, channels]: the authors' training task."""
        if not self.rolls:
            raise FedA2LError("next_patches() needs a timer with head = 'next_patch'")
        return self._rescaled(x, flat=False)

    def roll_out(self, x: Tensor) -> Tensor:
        """Forecast the horizon patch by patch. Each patch is predicted from the window that ends just before it."""
        patches: list[Tensor] = []
        for _ in range(-(-self.horizon // self.patch)):
            patches.append(self.next_patches(x)[:, -self.patch :])
            x = torch.cat([x[:, self.patch :], patches[-1]], dim=1)
        return torch.cat(patches, dim=1)[:, : self.horizon]

    def _rescaled(self, x: Tensor, *, flat: bool) -> Tensor:
        """Return s g((x - m) / s) + m, where g applies the head to all tokens at once (`flat`) or to each token."""
        mean = x.mean(dim=1, keepdim=True)
        scale = (x.var(dim=1, keepdim=True, correction=0) + 1e-5).sqrt()
        sequences = ((x - mean) / scale).transpose(1, 2)  # [batch, channels, length]
        # cast after scaling, since the level of the series needs float32
        tokens = self.encode(sequences.flatten(0, 1).to(self.embed.weight.dtype))
        forecast = self.head(tokens.flatten(-2)) if flat else self.head(tokens).flatten(-2)
        result: Tensor = forecast.unflatten(0, sequences.shape[:2]).transpose(1, 2) * scale + mean
        return result


def timer_next_patch(*, input: tuple[int, ...] = (96, 1), horizon: int = 96) -> Timer:
    """Timer with the authors' head: each token predicts the next patch, repeated until the horizon is reached."""
    return Timer(input=input, horizon=horizon, head="next_patch")


@functools.lru_cache
def positions(tokens: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return sinusoidal positions [tokens, width]: alternating sin(t w_i) and cos(t w_i), w_i = 10000^(-2 i / width).

    They are cached per device and not stored as a buffer, since they are not node state. A captured CUDA graph must not
    copy from the host.
    """
    with torch.inference_mode(False):  # the first call may be an evaluation and a later one training
        frequency = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width))
        angle = torch.arange(tokens, dtype=torch.float64).unsqueeze(-1) * frequency
        table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)
        return table.to(device=device, dtype=dtype)
