"""Run by torchrun: trains a tiny model with accelerate, and saves what the test compares."""

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin, PartialState
from torch import distributed
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from transformers.distributed import DistributedConfig

from drill.hf import attach
from tests.hf.tiny_models import T, build, logits, perturb


def parts():
    """A model, its optimiser and a batch of ids (4, 8)."""
    model = perturb(attach(build("llama"), depth=2)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    ids = torch.randint(3, 90, (4, 8), generator=torch.Generator().manual_seed(3))
    return model, optimizer, ids


def train(model, optimizer, ids, accelerator=None, steps=4):
    """The losses over all processes."""
    losses = []
    for _ in range(steps):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward() if accelerator is None else accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        total, processes = loss.detach().clone(), 1
        if distributed.is_initialized():
            distributed.all_reduce(total)
            processes = distributed.get_world_size()
        losses.append(total.item() / processes)
    return losses


def train_with(accelerator, **options):
    """The losses, and the trained model."""
    model, optimizer, ids = parts()
    model, optimizer = accelerator.prepare(model, optimizer)
    ids = ids.chunk(accelerator.num_processes)[accelerator.process_index]
    return train(model, optimizer, ids, accelerator, **options), model


def train_by_hand(kind, folder):
    """Without accelerate, as the docs say."""
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    model, _, ids = parts()
    body = model.model
    if kind == "fully_shard":
        for block in body.layers:
            fully_shard(block)
        fully_shard([body.norm, body.embed_tokens, model.lm_head])
        fully_shard(model)
    elif kind == "fsdp1":
        policy = ModuleWrapPolicy({type(body.layers[0])})
        cpu = torch.device("cpu")
        model = FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=cpu)
    elif kind == "tensor_parallel":
        model.save_pretrained(folder / "start")  # the first process writes
        distributed.barrier()
        plan = DistributedConfig(tp_plan="auto")
        model = T.AutoModelForCausalLM.from_pretrained(folder / "start", distributed_config=plan)
        model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    ids = ids if kind == "tensor_parallel" else ids.chunk(2)[rank]
    losses = train(model, optimizer, ids)
    state = model.state_dict()
    state = {name: getattr(each, "full_tensor", each.clone)() for name, each in state.items()}
    if rank == 0:
        again = parts()[0]
        again.load_state_dict(state)
        report = {"losses": losses, "logits": logits(again).tolist()}
        (folder / "report.json").write_text(json.dumps(report))
    distributed.destroy_process_group()


def main(kind, folder):
    if kind in ("fully_shard", "fsdp1", "tensor_parallel"):
        return train_by_hand(kind, folder)
    plugin = None
    if kind == "fsdp2":
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
            reshard_after_forward=True,
            state_dict_type="SHARDED_STATE_DICT",
        )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    if kind == "fsdp2":  # accelerate 1.15 takes the plugin for GPUs and their kin only
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
    losses, model = train_with(accelerator)
    report = {"losses": losses}
    if kind == "fsdp2":
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        report["shared"] = head.layer.label_weight is embedding.weight
        accelerator.save_state(folder / "sharded")
        accelerator.free_memory()
        _, loaded = train_with(accelerator, steps=1)
        accelerator.load_state(folder / "sharded")
        ids = torch.arange(3, 11)[None]
        with torch.no_grad():
            report["resumed"] = torch.equal(loaded.eval()(ids).logits, model.eval()(ids).logits)
    state = accelerator.get_state_dict(model)
    whole = accelerator.unwrap_model(model)
    whole.save_pretrained(
        folder / "saved", is_main_process=accelerator.is_main_process, state_dict=state
    )
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        again = T.AutoModelForCausalLM.from_pretrained(folder / "saved")
        report["logits"] = logits(again).tolist()
        (folder / "report.json").write_text(json.dumps(report))
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
