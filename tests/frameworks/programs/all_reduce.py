"""Sums a tensor of 16 MiB over all ranks, four times. Without a launcher: all_reduce.py MASTER COUNT, in pods named NAME-RANK."""
import datetime
import os
import socket
import sys

import torch
import torch.distributed as dist

if len(sys.argv) > 1:
    rank = socket.gethostname().rpartition("-")[2]
    os.environ.update(MASTER_ADDR=sys.argv[1], MASTER_PORT="29501", WORLD_SIZE=sys.argv[2], RANK=rank)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=40))
tensor = torch.ones(4 << 20)
for _ in range(4):
    dist.all_reduce(tensor)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "has", tensor[0].item(), flush=True)
