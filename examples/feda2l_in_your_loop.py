"""FedA2L in your own loop: three nodes with different digits average their models after every round.

FedA2L needs only the marked lines.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import feda2l  # <-

images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
test, train = shuffled[:400], shuffled[400:]
shards = train[labels[train].argsort(stable=True)].tensor_split(3)  # different on purpose: digits 0-3, 3-6, 6-9

nodes = []
for _ in shards:
    torch.manual_seed(1)  # all nodes start from the same model
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(feda2l.layer_groups(model), lr=0.05, momentum=0.9)  # <- one group per layer
    rates = feda2l.FedA2L(optimizer, warmup_rounds=10, window=5, decay=0.05)  # <-
    nodes.append((model, optimizer, rates))

for round in range(1, 41):
    for (model, optimizer, rates), shard in zip(nodes, shards, strict=True):
        rates.begin_round()  # <- stores the base state
        for batch in shard[torch.randperm(len(shard))].split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        rates.end_training()  # <- stores the trained state

    with torch.no_grad():  # your averaging; here all nodes are neighbours
        for copies in zip(*(model.parameters() for model, _, _ in nodes), strict=True):
            mean = torch.stack(copies).mean(dim=0)
            for copy in copies:
                copy.copy_(mean)

    for _, _, rates in nodes:
        rates.step()  # <- reads the averaged state, sets the next rates

    if round % 10 == 0:
        accuracy = (model(images[test]).argmax(dim=1) == labels[test]).float().mean()
        print(f"round {round:2d}: accuracy {accuracy:.3f}, rates", *(f"{rate:.4f}" for rate in rates.get_last_lr()))
