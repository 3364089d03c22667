import torch
from torch import Tensor, nn


class LpRegularizer(nn.Module):
    def forward(self, embeddings: Tensor) -> Tensor:
        return torch.linalg.vector_norm(embeddings, dim=1).mean()
