"""How many blocks the chain of the label encoder is launched with."""

from types import SimpleNamespace

import pytest
import torch

from drill.kernels.label_encoder.chain import chain as module
from drill.kernels.label_encoder.chain.chain import CLUSTER

PROCESSORS = (1, 2, 3, 5, 6, 7, 12, 14, 60, 132)  # of a small part of a GPU up to a whole one


@pytest.fixture(params=PROCESSORS)
def processors(request, monkeypatch):
    told = SimpleNamespace(multi_processor_count=request.param)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: told)
    return request.param


@pytest.mark.parametrize("beside", [False, True])
def test_clusters_are_whole_and_at_least_one(processors, monkeypatch, beside):
    monkeypatch.setattr(module, "awaited_by", lambda: object() if beside else None)
    share = processors // 3 if beside else processors
    for tiles in (CLUSTER, 4 * CLUSTER, 1000 * CLUSTER):
        blocks = module._blocks(torch.device("cuda"), tiles)
        assert blocks % CLUSTER == 0
        assert CLUSTER <= blocks <= max(CLUSTER, min(tiles, share))
        assert blocks == tiles or blocks + CLUSTER > share  # no multiprocessor is left idle
