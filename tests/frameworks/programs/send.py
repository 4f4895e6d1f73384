"""Rank 0 sends 64 MiB to rank 1 by MPI."""
import socket

from mpi4py import MPI

world = MPI.COMM_WORLD
message = bytearray(8 << 20)
for _ in range(8):
    if world.rank == 0:
        world.Send(message, dest=1)
    else:
        world.Recv(message, source=0)
print("rank", world.rank, "of", world.size, "on", socket.gethostname(), flush=True)
