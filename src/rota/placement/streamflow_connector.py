"""A connector of StreamFlow that runs the commands of steps as rota jobs.

It stands on another connector (this machine, if it wraps none) that sees the same files: directories are made and files
moved there. Only the commands of jobs go to rota, with what the job asks for.
"""

import asyncio
import contextlib
import json
import math
import os
import shlex
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence
from typing import Any

from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.core.scheduling import AvailableLocation
from streamflow.deployment.connector.base import BatchConnector, copy_same_connector
from streamflow.deployment.wrapper import ConnectorWrapper, get_inner_location, get_inner_locations

from rota import aio
from rota.model.errors import RotaError
from rota.placement.errors import DefinitionError, PlacementError

__all__ = ["RotaConnector"]

COMMAND = "STREAMFLOW_COMMAND"
"""The variable that carries a command to the shell that runs it: nothing in it is read as a placeholder."""
STDOUT, DEVNULL, PIPE = asyncio.subprocess.STDOUT, asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE


class RotaConnector(ConnectorWrapper, BatchConnector):
    """A deployment whose commands are jobs of a manager of rota."""

    asked: Callable[[str], Any] = staticmethod(lambda job_name: None)
    """Says what hardware a job was given, if it is known."""

    def __init__(
        self,
        deployment_name: str,
        config_dir: str,
        connector: Connector,
        service: str | None,
        home: str | None = None,
        options: Mapping[str, Any] | None = None,
        services: Mapping[str, Mapping[str, Any]] | None = None,
        maxConcurrentJobs: int = 1000,  # noqa: N803  StreamFlow's connectors name it so
        transferBufferSize: int = 1 << 16,  # noqa: N803
    ) -> None:
        super().__init__(deployment_name, config_dir, connector, service, transferBufferSize)
        self.home = _below(config_dir, home) if home is not None else None
        self.options = dict(options or {})
        self.services = {name: dict(more) for name, more in (services or {}).items()}
        self.most = maxConcurrentJobs
        self._client: aio.Client | None = None
        self._batches: dict[int, aio.Batch] = {}
        """The jobs that run, or wait to."""

    # ---- where: one location, which sees what the inner one sees ----

    async def get_available_locations(self, service: str | None = None) -> MutableMapping[str, AvailableLocation]:
        """One location, with as many slots as jobs may be queued."""
        if service is not None and service not in self.services:
            raise DefinitionError(
                f"deployment {self.deployment_name} has no service {service}, only {', '.join(self.services) or 'none'}"
            )
        inner = await self.connector.get_available_locations(service=self.service)
        if len(inner) != 1:
            raise DefinitionError(
                f"deployment {self.deployment_name} must wrap one location, which sees the same files; "
                f"{self.connector.deployment_name} has {len(inner)}"
            )
        (below,) = inner.values()
        name = f"{below.name}/rota"
        location = AvailableLocation(
            name, self.deployment_name, below.hostname, service=service, slots=self.most, wraps=below
        )
        location.location.mounts = {"/": "/"}
        return {name: location}

    # ---- files: all of it is the inner connector's ----

    async def copy_local_to_remote(
        self, src: str, dst: str, locations: MutableSequence[ExecutionLocation], read_only: bool = False
    ) -> None:
        """Bring a file there."""
        await self.connector.copy_local_to_remote(src, dst, get_inner_locations(locations), read_only)

    async def copy_remote_to_local(
        self, src: str, dst: str, location: ExecutionLocation, read_only: bool = False
    ) -> None:
        """Bring a file here."""
        await self.connector.copy_remote_to_local(src, dst, get_inner_location(location), read_only)

    async def copy_remote_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        source_location: ExecutionLocation,
        source_connector: Connector | None = None,
        read_only: bool = False,
    ) -> None:
        """Bring a file from one to others."""
        left = await copy_same_connector(
            connector=self,
            locations=locations,
            source_location=source_location,
            src=src,
            dst=dst,
            read_only=read_only,
        )
        if left:
            await self.connector.copy_remote_to_remote(
                src=src,
                dst=dst,
                locations=get_inner_locations(left),
                source_location=source_location,
                source_connector=source_connector or self,
                read_only=read_only,
            )

    async def get_shell(self, command: MutableSequence[str], location: ExecutionLocation) -> Any:
        """A shell there."""
        return await self.connector.get_shell(command, get_inner_location(location))

    async def get_stream_reader(self, command: MutableSequence[str], location: ExecutionLocation) -> Any:
        """The output of a command there."""
        return await self.connector.get_stream_reader(command, get_inner_location(location))

    async def get_stream_writer(self, command: MutableSequence[str], location: ExecutionLocation) -> Any:
        """The input of a command there."""
        return await self.connector.get_stream_writer(command, get_inner_location(location))

    # ---- commands ----

    async def run(
        self,
        location: ExecutionLocation,
        command: MutableSequence[str],
        environment: MutableMapping[str, str] | None = None,
        workdir: str | None = None,
        stdin: int | str | None = None,
        stdout: int | str = STDOUT,
        stderr: int | str = STDOUT,
        capture_output: bool = False,
        timeout: int | None = None,
        job_name: str | None = None,
    ) -> tuple[str, int] | None:
        """Run a command: that of a job as a rota job, any other on the inner location."""
        if job_name is None:
            return await self.connector.run(  # type: ignore[no-any-return]
                location=get_inner_location(location),
                command=command,
                environment=environment,
                workdir=workdir,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                capture_output=capture_output,
                timeout=timeout,
            )
        line = " ".join(command) + _redirections(stdin, stdout, stderr)
        variables = {**(location.environment or {}), **(environment or {}), COMMAND: line}
        options = {**_needs(self.asked(job_name)), **self.options, **self.services.get(location.service or "", {})}
        if timeout is not None:
            options["time"] = timeout
        options.setdefault("group", job_name.rpartition("/")[0] or job_name)
        batch = await self._submit(job_name, variables, workdir, options)
        self._batches[batch.id] = batch
        try:
            await batch.wait()
        except asyncio.CancelledError:
            await asyncio.shield(self._kill([batch]))
            raise
        finally:
            self._batches.pop(batch.id, None)
        return await self._result(batch, job_name, timeout, kept=stdout == STDOUT)

    async def _submit(
        self, job_name: str, variables: Mapping[str, str], workdir: str | None, options: dict[str, Any]
    ) -> aio.Batch:
        """Queue a command; cancelled in the middle, nothing of it stays."""
        if self._client is None:
            self._client = aio.Client(self.home)
        name = job_name.strip("/")[:128] or "job"
        env = {**options.pop("env", {}), **variables}
        shell = ["/bin/sh", "-c", f'eval "${COMMAND}"']
        sent = asyncio.ensure_future(self._client.submit(shell, name=name, cwd=workdir, env=env, **options))
        try:
            return await asyncio.shield(sent)
        except asyncio.CancelledError:
            with contextlib.suppress(RotaError):
                await asyncio.shield(self._kill([await sent]))
            raise
        except TypeError as error:
            raise DefinitionError(f"deployment {self.deployment_name}: options of its jobs: {error}") from None

    async def _result(self, batch: aio.Batch, job_name: str, timeout: int | None, kept: bool) -> tuple[str, int]:
        """(what a job wrote, its exit status). One that never ran, or was ended by others, is an error."""
        job = await batch.job(1)
        if job.state == "COMPLETED":
            status = 0
        elif timeout is not None and job.reason is not None and job.reason.startswith("time"):
            raise PlacementError(f"job {job_name} (rota job {job.id}) was ended after {timeout} s")
        elif job.exit_code:
            status = job.exit_code
        elif job.signal:
            status = 128 + job.signal
        else:
            raise PlacementError(
                f"job {job_name} (rota job {job.id}) is {job.state}: {job.reason or 'no reason is known'}"
            )
        return (await job.log()).strip() if kept else "", status

    async def _kill(self, batches: list[aio.Batch]) -> None:
        for batch in batches:
            with contextlib.suppress(RotaError):
                await batch.kill()

    async def undeploy(self, external: bool) -> None:
        """End what still runs, and leave the manager."""
        batches, client = list(self._batches.values()), self._client
        self._batches.clear()
        self._client = None
        await self._kill(batches)
        if client is not None:
            await client.close()

    @classmethod
    def get_schema(cls) -> str:
        """A JSON schema of what it is made with."""
        options = {
            "type": "object",
            "description": "Options of its jobs, as of rota.Client.submit: cores, memory, on …",
        }
        home = {"type": "string", "description": "The manager's home, beside this file (else $ROTA_HOME, or ~/.rota)"}
        services = {"type": "object", "additionalProperties": options, "description": "Service → options of its jobs"}
        most = {"type": "integer", "minimum": 1, "default": 1000, "description": "How many jobs are queued at a time"}
        size = {"type": "integer", "default": 1 << 16, "description": "Bytes that are moved at a time"}
        return json.dumps(
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "$id": "https://rota.invalid/schemas/connector/rota.json",
                "type": "object",
                "properties": {
                    "home": home,
                    "options": options,
                    "services": services,
                    "maxConcurrentJobs": most,
                    "transferBufferSize": size,
                },
                "additionalProperties": False,
            }
        )


def _below(config_dir: str, path: str) -> str:
    """A path that the workflow's file names: beside that. Connectors are told its directory, or the file itself."""
    beside = config_dir if os.path.isdir(config_dir) else os.path.dirname(config_dir)
    return os.path.join(os.path.abspath(beside), os.path.expanduser(path))


def _redirections(stdin: int | str | None, stdout: int | str, stderr: int | str) -> str:
    """What a shell is told about the streams of a command."""
    if PIPE in (stdin, stdout, stderr):
        raise PlacementError("a rota job has no pipes to whoever asks for it: give a file")
    out = f" < {_file(stdin)}" if stdin is not None else ""
    if stdout != STDOUT:
        out += f" > {_file(stdout)}"
    if stderr == stdout:
        return f"{out} 2>&1"
    return out if stderr == STDOUT else f"{out} 2> {_file(stderr)}"


def _file(stream: int | str) -> str:
    return "/dev/null" if stream == DEVNULL else shlex.quote(str(stream))


def _needs(hardware: Any) -> dict[str, Any]:
    """What a job asks of rota, by the hardware that it was given."""
    if hardware is None:
        return {}
    out: dict[str, Any] = {}
    if hardware.cores > 0:
        out["cores"] = math.ceil(1000 * hardware.cores) / 1000
    if hardware.memory > 0:
        out["memory"] = math.ceil(hardware.memory) << 20
    return out
