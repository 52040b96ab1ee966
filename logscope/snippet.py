"""Put this beside the model you patch; it imports torch only. Made by `logscope grammar snippet`.

Every line says who printed it, in which pass, in which mode and with how many requests, so that nothing needs to be
guessed when the log is read:

    eagle3_debug("dsv2", "layer 3 capture", forward_batch, hidden_states, residual_is_none=residual is None)
    eagle3_debug("logits", "aux concat", forward_batch, joined, num_aux=len(aux), capture_hidden_mode=mode.name)

Run the server with --disable-cuda-graph: Python does not run inside a replayed graph, so nothing would be printed.
"""

import os
import time

_passes = {}


def eagle3_debug(site, label, forward_batch=None, tensor=None, **values):
    """Print one debug line; at the first print of a forward pass the pass counter moves on."""
    rank = os.environ.get("RANK", "0")
    try:
        import torch.distributed as dist

        if dist.is_initialized():
            rank = dist.get_rank()
    except ImportError:
        pass
    if forward_batch is not None:
        count, last = _passes.get(site, (0, None))
        if last is not forward_batch:
            count += 1
        _passes[site] = (count, forward_batch)
        mode = getattr(forward_batch, "forward_mode", None)
        values = {
            "forward_mode": getattr(mode, "name", mode),
            "bs": getattr(forward_batch, "batch_size", None),
            "pass": count,
            **values,
        }
    if tensor is not None:
        flat = tensor.detach().float()
        values["shape"] = list(tensor.shape)
        values["norm"] = f"{flat.norm().item():.4f}"
        values["first5"] = flat.flatten()[:5].tolist()
    fields = ", ".join(f"{key}={value}" for key, value in values.items())
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    # One write of one line: lines of several ranks stay whole.
    os.write(1, f"[{stamp} TP{rank}] EAGLE3_DEBUG[{site}] {label}: {fields}\n".encode())
