"""Writes 64 MiB into another pod with Mooncake: transfer.py OWN-NAME target, or transfer.py OWN-NAME NAME:PORT,ADDRESS."""
import ctypes
import signal
import sys

from mooncake.engine import TransferEngine

own, peer = sys.argv[1:]
length = 64 << 20
engine = TransferEngine()
if engine.initialize(own, "P2PHANDSHAKE", "tcp", ""):
    sys.exit("initialize failed")
memory = ctypes.create_string_buffer(length)
address = ctypes.addressof(memory)
if engine.register_memory(address, length):
    sys.exit("register_memory failed")
if peer == "target":
    print(f"ready at {own}:{engine.get_rpc_port()},{address}", flush=True)
    signal.pause()
segment, _, target = peer.partition(",")
if engine.transfer_sync_write(segment, address, int(target), length):
    sys.exit("transfer_sync_write failed")
print("written", flush=True)
