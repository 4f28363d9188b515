"""An MPI program without a compiler: `mpi_hosts.py LIBRARY WORLD` sums up all ranks, and rank 0 prints who is there.

It prints `SIZE SUM HOST,HOST,…`. LIBRARY is libmpi.so.40 (Open MPI) or libmpich.so.12; their handles differ.
"""

import ctypes
import socket
import sys

NAME = 64


def main(library):
    mpi = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    if library.startswith("libmpich"):
        world, integer, byte, add = map(ctypes.c_int, (0x44000000, 0x4C000405, 0x4C00010D, 0x58000003))
    else:
        world, integer, byte, add = (
            ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))
            for name in ("ompi_mpi_comm_world", "ompi_mpi_int", "ompi_mpi_byte", "ompi_mpi_op_sum")
        )
    mpi.MPI_Init(None, None)
    rank, size, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    mpi.MPI_Comm_rank(world, ctypes.byref(rank))
    mpi.MPI_Comm_size(world, ctypes.byref(size))
    mpi.MPI_Allreduce(ctypes.byref(rank), ctypes.byref(total), 1, integer, add, world)
    mine = ctypes.create_string_buffer(socket.gethostname().encode(), NAME)
    names = ctypes.create_string_buffer(NAME * size.value)
    mpi.MPI_Gather(mine, NAME, byte, names, NAME, byte, 0, world)
    if rank.value == 0:
        hosts = [names.raw[at : at + NAME].rstrip(b"\0").decode() for at in range(0, NAME * size.value, NAME)]
        print(size.value, total.value, ",".join(hosts))
    mpi.MPI_Finalize()


if __name__ == "__main__":
    main(sys.argv[1])
