"""Junk from many addresses of the loopback: `python support_flood.py PORT CONNECTIONS ADDRESSES SECONDS [NET]`.

The addresses are 127.0.NET.1 and on (1 unless told; 0 has that of local runners). So many connections are held open
at a time, and opened again a while after they were cut, until SECONDS are over or it is told to end (TERM). Prints a
line when there have been as many as CONNECTIONS, and at the end how many there were.
"""

import asyncio
import os
import random
import signal
import socket
import ssl
import sys
from collections.abc import Callable

AGAIN_S = 3.0
JUNK = (
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512),
    b"\xff" * 4096,
    b"\x00\x00\xff\xff" + b"[" * 65_000,
    b"tls",
)


async def hold(port: int, address: str, until: float, made: Callable[[], None]) -> None:
    """One connection after the other."""
    loop = asyncio.get_running_loop()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    while loop.time() < until:
        junk = random.choice(JUNK)
        sock = socket.socket()
        sock.setblocking(False)
        writer = None
        try:
            sock.bind((address, 0))
            await asyncio.wait_for(loop.sock_connect(sock, ("127.0.0.1", port)), 5)
            made()
            if junk == b"tls":  # goes as far as the challenge, and is then silent, or sends half of a frame
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection(sock=sock, ssl=context, server_hostname=""), 5
                )
                writer.write(b"\x00\x00\xff\x00" + os.urandom(30_000))
                await asyncio.wait_for(reader.read(), max(0.1, until - loop.time()))
            else:
                await loop.sock_sendall(sock, junk)
                while await asyncio.wait_for(loop.sock_recv(sock, 4096), max(0.1, until - loop.time())):
                    pass
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            if writer is not None:
                writer.close()
            sock.close()
        await asyncio.sleep(min(AGAIN_S * (0.5 + random.random()), max(0.0, until - loop.time())))


async def main() -> None:
    """Flood until the time is up."""
    port, connections, addresses = map(int, sys.argv[1:4])
    net = int(sys.argv[5]) if len(sys.argv) > 5 else 1
    until = asyncio.get_running_loop().time() + float(sys.argv[4])
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    count = 0

    def made() -> None:
        nonlocal count
        count += 1
        if count == connections:
            print(count, flush=True)

    def end() -> None:
        print(count, flush=True)
        os._exit(0)  # nothing is to be closed in order

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
    await asyncio.gather(
        *(hold(port, f"127.0.{net}.{1 + number % addresses}", until, made) for number in range(connections))
    )
    end()


if __name__ == "__main__":
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, max(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    asyncio.run(main())
