"""ResNet-18 and ResNet-34 for small images.

He, Zhang, Ren, Sun: "Deep Residual Learning for Image Recognition", CVPR 2016, with the usual CIFAR stem:
a 3x3 convolution with stride 1 and no pooling.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

Norm = Callable[[int], nn.Module]


class BasicBlock(nn.Module):
    """relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)) with 3x3 convolutions.

    The shortcut is the identity, or a 1x1 projection if the shape changes.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = norm(outputs)
        self.relu = nn.ReLU()
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        result: Tensor = self.relu(out + self.shortcut(x))
        return result


class ResNet(nn.Module):
    """A stem, four groups of blocks of width 64, 128, 256, 512, global average pooling, one linear layer."""

    def __init__(self, blocks: tuple[int, ...], *, classes: int, channels: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        self.bn1 = norm(64)
        self.relu = nn.ReLU()
        width = 64
        for number, count in enumerate(blocks, start=1):
            outputs, stride = 64 * 2 ** (number - 1), 1 if number == 1 else 2
            group = [BasicBlock(width, outputs, stride, norm)]
            group += [BasicBlock(outputs, outputs, 1, norm) for _ in range(count - 1)]
            self.add_module(f"layer{number}", nn.Sequential(*group))
            width = outputs
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.linear = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.children():
            x = part(x)
        return x


def resnet18(*, classes: int = 10, input: tuple[int, ...] = (3, 32, 32)) -> ResNet:
    """ResNet-18 with BatchNorm: 11,173,962 parameters for 10 classes, 41 layers."""
    return ResNet((2, 2, 2, 2), classes=classes, channels=input[0], norm=nn.BatchNorm2d)


def resnet34(*, classes: int = 10, input: tuple[int, ...] = (3, 32, 32)) -> ResNet:
    """ResNet-34 with BatchNorm: 21,282,122 parameters for 10 classes, 73 layers."""
    return ResNet((3, 4, 6, 3), classes=classes, channels=input[0], norm=nn.BatchNorm2d)


def resnet18_gn(*, classes: int = 10, input: tuple[int, ...] = (3, 32, 32)) -> ResNet:
    """ResNet-18 with GroupNorm (32 groups): no running statistics to exchange."""
    return ResNet((2, 2, 2, 2), classes=classes, channels=input[0], norm=partial(nn.GroupNorm, 32))


def resnet34_gn(*, classes: int = 10, input: tuple[int, ...] = (3, 32, 32)) -> ResNet:
    """ResNet-34 with GroupNorm (32 groups)."""
    return ResNet((3, 4, 6, 3), classes=classes, channels=input[0], norm=partial(nn.GroupNorm, 32))
