"""The client: sandboxes, and what is in them."""

from __future__ import annotations

import json
import time
from typing import IO, Any, AsyncIterator, Callable, Literal, Mapping, Sequence

import httpx

from .. import errors, models
from .._codec import file_path, model
from .._config import Config
from .._output import Output
from .._retry import async_sleep as sleep
from .operations import AsyncControlOperations, AsyncSandboxOperations
from .transport import AsyncTransport

#: How long the start of a sandbox may take, in seconds: its image may have to come first.
_START = 600.0
#: How much longer than the server a call waits, in seconds.
_SLACK = 30.0
#: How long a sandbox may take to end, and how often that is looked at, in seconds.
_END, _LOOK = 660.0, 0.1
#: How long a call waits whose end nobody bounds, in seconds.
_ENDLESS = 366 * 24 * 3600.0


class AsyncDoze:
    """A platform. It opens no connection before the first call.

    What the caller does not name comes from DOZE_ADDRESS, DOZE_KEY and DOZE_WORKSPACE.
    ``timeout`` is how many seconds an answer may take to begin. ``retries`` is how often a call
    is repeated that may be. ``http`` carries the calls, such as with authorities of its own.
    """

    def __init__(
        self,
        address: str | None = None,
        key: str | None = None,
        workspace: str | None = None,
        *,
        timeout: float = 60.0,
        retries: int = 3,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        config = Config.of(address, key, workspace)
        self._transport = AsyncTransport(config, timeout, retries, http)
        #: Every call of the control API.
        self.api = AsyncControlOperations(self._transport, config.base)
        self.sandboxes = AsyncSandboxes(self)
        self.snapshots = AsyncSnapshots(self)
        self.volumes = AsyncVolumes(self)

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncDoze:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncSandboxes:
    """The sandboxes of the workspace."""

    def __init__(self, doze: AsyncDoze) -> None:
        self._doze = doze

    async def create(
        self,
        name: str | None = None,
        *,
        image: str | None = None,
        memory: int | None = None,
        ports: Sequence[int | models.Port] = (),
        envs: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        region: str | None = None,
        ttl: str | None = None,
        lifecycle: models.Lifecycle | None = None,
        network: models.NetworkRequest | None = None,
        volumes: Mapping[str, str] | Sequence[models.VolumeAttachmentRequest] = (),
        exist_ok: bool = False,
    ) -> AsyncSandbox:
        """Create a sandbox and return it when it runs.

        ``memory`` is in MiB. ``envs`` are variables, and ``secrets`` those whose values answers
        do not show. ``ttl`` is a life such as 24h. ``volumes`` are mount paths by the names of the
        volumes. With ``exist_ok``, a sandbox of this name that exists is the answer.
        """
        variables = [models.Env(name=k, value=v) for k, v in (envs or {}).items()]
        variables += [models.Env(name=k, value=v, secret=True) for k, v in (secrets or {}).items()]
        if isinstance(volumes, Mapping):
            volumes = [models.VolumeAttachmentRequest(name=k, mount_path=v) for k, v in volumes.items()]
        request = models.SandboxRequest(
            metadata=models.MetadataRequest(name=name, labels=dict(labels) if labels else None),
            spec=models.SandboxSpecRequest(
                region=region,
                lifecycle=lifecycle,
                network=network,
                volumes=list(volumes) or None,
                runtime=models.Runtime(
                    image=image,
                    memory=memory,
                    ttl=ttl,
                    envs=variables or None,
                    ports=[p if isinstance(p, models.Port) else models.Port(target=p) for p in ports] or None,
                ),
            ),
        )
        record = await self._doze.api.post_sandboxes(request, create_if_not_exist=exist_ok or None, timeout=_START)
        return AsyncSandbox(self._doze, record)

    async def get(self, name: str) -> AsyncSandbox:
        """Return a sandbox, which goes on sleeping."""
        return AsyncSandbox(self._doze, await self._doze.api.get_sandboxes_by_name(name))

    async def list(
        self, *, q: str | None = None, labels: Mapping[str, str] | None = None, status: str | None = None
    ) -> AsyncIterator[AsyncSandbox]:
        """Give the sandboxes of the workspace, the newest first. ``q`` is a part of the name."""
        wanted = [f"{k}={v}" for k, v in (labels or {}).items()] or None
        cursor: str | None = None
        while True:
            page = await self._doze.api.get_sandboxes(q=q, labels=wanted, status=status, cursor=cursor)
            for record in page.data:
                yield AsyncSandbox(self._doze, record)
            cursor = page.next_cursor
            if cursor is None:
                return

    async def delete(self, name: str, *, wait: bool = True) -> None:
        """Delete a sandbox with all that is in it. With wait, its volumes are free at the end."""
        record = await self._doze.api.delete_sandboxes_by_name(name)
        ends = time.monotonic() + _END
        while wait and record.status != "TERMINATED":
            if time.monotonic() > ends:
                raise errors.WaitTimeout(f"the sandbox {name} is not gone after {_END:.0f} seconds: its events say why")
            await sleep(_LOOK)
            try:
                record = await self._doze.api.get_sandboxes_by_name(name)
            except errors.NotFound:
                return


class AsyncSandbox:
    """A sandbox. As a context, it is deleted at the end."""

    def __init__(self, doze: AsyncDoze, record: models.Sandbox) -> None:
        self._doze = doze
        #: The sandbox as it was at the last answer.
        self.record = record
        #: Its address; empty if the platform gives it none.
        self.url = record.metadata.url or ""
        #: Every call of the API inside the sandbox.
        self.api = AsyncSandboxOperations(doze._transport, self.url)
        self.fs = AsyncFiles(doze._transport, self.api, self.url)
        self.process = AsyncProcesses(doze._transport, self.api, self.url)
        self.previews = AsyncPreviews(doze, self.name)
        self.snapshots = AsyncSandboxSnapshots(doze, self.name)
        self.schedules = AsyncSchedules(doze, self.name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.status}>"

    @property
    def name(self) -> str:
        return self.record.metadata.name

    @property
    def status(self) -> str:
        """What it is, such as DEPLOYED, as of the last answer."""
        return self.record.status or ""

    async def refresh(self) -> None:
        """Read the record again."""
        self.record = await self._doze.api.get_sandboxes_by_name(self.name)

    async def delete(self, *, wait: bool = True) -> None:
        """Delete the sandbox with all that is in it. With wait, its volumes are free at the end."""
        await self._doze.sandboxes.delete(self.name, wait=wait)

    async def fork(self, name: str, *, snapshot: str | None = None) -> AsyncSandbox:
        """Start a copy of the sandbox as it is, or as it was at a snapshot."""
        request = models.ForkRequest(target_name=name, target_type="sandbox", snapshot_id=snapshot)
        await self._doze.api.post_sandboxes_by_name_fork(self.name, request, timeout=_START)
        return await self._doze.sandboxes.get(name)

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.delete()
        except errors.NotFound:
            pass  # it was deleted before


class AsyncFiles:
    """The files of a sandbox. Relative paths begin in its working directory."""

    def __init__(self, transport: AsyncTransport, api: AsyncSandboxOperations, url: str) -> None:
        self._transport, self._api, self._url = transport, api, url

    async def write(self, path: str, content: str | bytes | IO[bytes], *, permissions: str | None = None) -> None:
        """Write a file whole or not at all, with its missing parents. ``permissions`` are octal, such as 0755."""
        if isinstance(content, str):
            await self._api.write_file(path, models.FileRequest(content=content, permissions=permissions))
            return
        parts: dict[str, Any] = {}
        if permissions is not None:
            parts["permissions"] = (None, permissions)  # before the file
        parts["file"] = ("file", content, "application/octet-stream")
        await self._transport.send("PUT", f"{self._url}/filesystem/{file_path(path)}", files=parts)

    async def write_tree(self, path: str, files: Mapping[str, str | None]) -> models.Directory:
        """Write many files below a directory."""
        return await self._api.write_tree(path, models.TreeRequest(files=dict(files)))

    async def read(self, path: str) -> str:
        """Return the text of a file."""
        return (await self.read_bytes(path)).decode()

    async def read_bytes(self, path: str) -> bytes:
        """Return the content of a file."""
        response = await self._transport.send(
            "GET",
            f"{self._url}/filesystem/{file_path(path)}",
            params={"download": "true"},
            headers={"Accept": "application/octet-stream"},
        )
        if "content-disposition" not in response.headers:
            raise errors.DozeError(f"{path} is a directory: use ls")
        return response.content

    async def ls(self, path: str = ".") -> models.Directory:
        """List a directory, one level deep."""
        found = await self._api.read_file(path)
        if isinstance(found, models.Directory):
            return found
        raise errors.DozeError(f"{path} is a file: use read")

    async def mkdir(self, path: str, *, permissions: str | None = None) -> None:
        """Make a directory, with its missing parents."""
        await self._api.write_file(path, models.FileRequest(is_directory=True, permissions=permissions))

    async def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file or a directory. With recursive, the directory need not be empty."""
        await self._api.delete_file(path, recursive=recursive)

    async def find(self, path: str = ".", *, patterns: Sequence[str] = (), type: Literal["file", "directory"] = "file") -> list[str]:
        """Return the paths below a directory, relative to it, whose names match a glob."""
        found = await self._api.find_files(path, type=type, patterns=",".join(patterns) or None, max_results=0)
        return [match.path for match in found.matches]

    async def grep(self, query: str, path: str = ".", *, pattern: str | None = None, case_sensitive: bool = False) -> models.TextMatches:
        """Find a plain text in the files below a directory. ``pattern`` is a glob of their names."""
        return await self._api.search_text(path, query=query, file_pattern=pattern, case_sensitive=case_sensitive, max_results=0)

    async def watch(self, path: str, *, recursive: bool = False, ignore: Sequence[str] = ()) -> AsyncIterator[models.FileEvent]:
        """Give the changes in a directory, until the caller stops or the directory is gone."""
        decode = model(models.FileEvent)
        async for line in self._api.watch_files(path.rstrip("/") + "/**" if recursive else path, ignore=",".join(ignore) or None):
            if line.startswith("{"):
                yield decode(json.loads(line))


class AsyncProcesses:
    """The processes of a sandbox. One is known by its name or its pid."""

    def __init__(self, transport: AsyncTransport, api: AsyncSandboxOperations, url: str) -> None:
        self._transport, self._api, self._url = transport, api, url

    async def exec(
        self,
        command: str,
        *,
        name: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        wait: bool = False,
        timeout: int | None = None,
        wait_for_ports: Sequence[int] = (),
        keep_alive: bool = False,
        restart_on_failure: bool = False,
        max_restarts: int | None = None,
        stdin: bool = False,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
    ) -> models.Process:
        """Run a command.

        The answer comes at once, when the process serves ``wait_for_ports``, or with ``wait`` when it
        has ended. ``timeout`` bounds the wait in seconds; with ``keep_alive`` it is also the life of the
        process. ``on_stdout`` and ``on_stderr`` get output as it comes, and imply ``wait``. A command
        that fails is no error: see ``exit_code``.
        """
        request = models.ProcessRequest(
            command=command,
            name=name,
            working_dir=cwd,
            env=dict(env) if env else None,
            timeout=timeout,
            wait_for_ports=list(wait_for_ports) or None,
            keep_alive=keep_alive or None,
            restart_on_failure=restart_on_failure or None,
            max_restarts=max_restarts,
            stdin=stdin or None,
        )
        if on_stdout or on_stderr:
            return await self._follow(request, on_stdout, on_stderr)
        request.wait_for_completion = wait or None
        patience = None
        if wait or wait_for_ports:
            patience = timeout + _SLACK if timeout else _ENDLESS
        return await self._api.start_process(request, timeout=patience)

    async def _follow(
        self,
        request: models.ProcessRequest,
        on_stdout: Callable[[str], object] | None,
        on_stderr: Callable[[str], object] | None,
    ) -> models.Process:
        ends = time.monotonic() + request.timeout if request.timeout else None
        accept = {"Accept": "text/event-stream"}
        async with self._transport.stream("POST", f"{self._url}/process", body=request, headers=accept) as lines:
            async for line in lines:
                if not line.strip():
                    continue
                event = json.loads(line)
                kind, data = event["type"], event.get("data", "")
                if kind == "result":
                    return model(models.Process)(json.loads(data))
                if kind == "error":
                    raise errors.Unprocessable(data, status=422)
                if kind == "stdout" and on_stdout:
                    on_stdout(data)
                if kind == "stderr" and on_stderr:
                    on_stderr(data)
                if ends is not None and time.monotonic() > ends:
                    raise errors.WaitTimeout(f"{request.command!r} did not end within {request.timeout} seconds: it goes on")
        raise errors.Unreachable("the sandbox broke off the output of the process: it may go on")

    async def list(self) -> list[models.Process]:
        """Return all processes, the newest first, with the end of their output."""
        return await self._api.list_processes()

    async def get(self, process: str) -> models.Process:
        """Return a process, with the end of its output."""
        return await self._api.get_process(process)

    async def logs(self, process: str) -> models.ProcessOutput:
        """Return what a process has written."""
        return await self._api.get_process_logs(process)

    async def stream_logs(self, process: str) -> AsyncIterator[Output]:
        """Give the lines of a process from the first to its last, as they come."""
        async for line in self._api.stream_process_logs(process):
            output = Output.of(line)
            if output is not None:
                yield output

    async def stop(self, process: str) -> None:
        """Ask a process and its group to end."""
        await self._api.stop_process(process)

    async def kill(self, process: str) -> None:
        """End a process and its group at once."""
        await self._api.kill_process(process)

    async def write_stdin(self, process: str, content: str | bytes) -> None:
        """Write to the standard input of a process that was started with stdin."""
        await self._api.write_process_input(process, content.encode() if isinstance(content, str) else content)

    async def close_stdin(self, process: str) -> None:
        """End the standard input of a process."""
        await self._api.close_process_input(process)


class AsyncPreviews:
    """The public addresses of ports of a sandbox."""

    def __init__(self, doze: AsyncDoze, sandbox: str) -> None:
        self._doze, self._sandbox = doze, sandbox

    async def create(self, port: int, name: str | None = None, *, public: bool = True, ttl: str | None = None) -> models.Preview:
        """Give a port an address, ``spec.url``. One that is not public asks for a token."""
        request = models.PreviewRequest(
            metadata=models.PreviewMetadataRequest(name=name or f"port-{port}"),
            spec=models.PreviewSpecRequest(port=port, public=public, ttl=ttl),
        )
        return await self._doze.api.post_sandboxes_by_name_previews(self._sandbox, request)

    async def list(self) -> list[models.Preview]:
        return await self._doze.api.get_sandboxes_by_name_previews(self._sandbox)

    async def get(self, name: str) -> models.Preview:
        return await self._doze.api.get_sandboxes_by_name_previews_by_preview(self._sandbox, name)

    async def delete(self, name: str) -> None:
        await self._doze.api.delete_sandboxes_by_name_previews_by_preview(self._sandbox, name)

    async def create_token(self, name: str, *, expires_at: str) -> str:
        """Return a token of a preview that is not public. ``expires_at`` is a moment in RFC 3339."""
        request = models.PreviewTokenRequest(spec=models.PreviewTokenSpecRequest(expires_at=expires_at))
        made = await self._doze.api.post_sandboxes_by_name_previews_by_preview_tokens(self._sandbox, name, request)
        return made.spec.token or ""


class AsyncSchedules:
    """The schedules of a sandbox. Each starts a command at times, and wakes the sandbox for it."""

    def __init__(self, doze: AsyncDoze, sandbox: str) -> None:
        self._doze, self._sandbox = doze, sandbox

    async def create(
        self,
        command: str,
        id: str | None = None,
        *,
        cron: str | None = None,
        at: str | None = None,
        after: str | None = None,
        name: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        keep_alive: bool = True,
        timeout: int | None = None,
        max_executions: int | None = None,
    ) -> models.Schedule:
        """Start a command at times.

        Name one time: ``cron`` is five fields in UTC, such as ``0 3 * * *``, ``at`` a moment in
        RFC 3339, and ``after`` a duration from now, such as ``15m``. A schedule with ``at`` or
        ``after`` is gone once it has started its command. The sandbox stays awake while a command
        with ``keep_alive`` runs. ``timeout`` is the life of the process in seconds; 0 is none.
        ``max_executions`` is how many executions are recorded.
        """
        times: dict[Literal["cron", "at", "sleep"], str | None] = {"cron": cron, "at": at, "sleep": after}
        given = [(type, value) for type, value in times.items() if value is not None]
        if len(given) != 1:
            raise errors.DozeError("name one time of the schedule: cron, at or after")
        request = models.ScheduleRequest(
            id=id,
            type=given[0][0],
            value=given[0][1],
            max_executions=max_executions,
            input=models.ScheduleInputRequest(
                command=command, name=name, working_dir=cwd, env=dict(env) if env else None, keep_alive=keep_alive, timeout=timeout
            ),
        )
        return await self._doze.api.post_sandboxes_by_name_schedules(self._sandbox, request)

    async def get(self, id: str) -> models.Schedule:
        return await self._doze.api.get_sandboxes_by_name_schedules_by_schedule(self._sandbox, id)

    async def list(self) -> AsyncIterator[models.Schedule]:
        """Give the schedules of the sandbox."""
        cursor: str | None = None
        while True:
            page = await self._doze.api.get_sandboxes_by_name_schedules(self._sandbox, cursor=cursor)
            for schedule in page.data:
                yield schedule
            cursor = page.next_cursor
            if cursor is None:
                return

    async def delete(self, id: str) -> None:
        await self._doze.api.delete_sandboxes_by_name_schedules_by_schedule(self._sandbox, id)

    async def executions(
        self, id: str | None = None, *, status: Literal["succeeded", "failed"] | None = None
    ) -> AsyncIterator[models.Execution]:
        """Give the executions of one schedule or of all, newest first.

        One that succeeded says that the sandbox took the command: how it ended, its process says.
        """
        cursor: str | None = None
        while True:
            page = await self._doze.api.get_sandboxes_by_name_schedule_executions(
                self._sandbox, schedule=id, status=status, cursor=cursor
            )
            for execution in page.data:
                yield execution
            cursor = page.next_cursor
            if cursor is None:
                return


class AsyncSandboxSnapshots:
    """The snapshots of one sandbox."""

    def __init__(self, doze: AsyncDoze, sandbox: str) -> None:
        self._doze, self._sandbox = doze, sandbox

    async def create(self, name: str | None = None) -> models.Snapshot:
        """Capture the sandbox, with its memory and its files."""
        return await self._doze.api.post_sandboxes_by_name_snapshots(self._sandbox, models.SnapshotRequest(name=name), timeout=_START)

    async def list(self) -> list[models.Snapshot]:
        return await self._doze.api.get_sandboxes_by_name_snapshots(self._sandbox)

    async def restore(self, id: str) -> None:
        """Make the sandbox again what it was at a snapshot."""
        await self._doze.api.post_sandboxes_by_name_snapshots_by_snapshot_restore(self._sandbox, id, timeout=_START)

    async def delete(self, id: str) -> None:
        await self._doze.api.delete_sandboxes_by_name_snapshots_by_snapshot(self._sandbox, id)


class AsyncSnapshots:
    """The snapshots of the workspace. They outlive their sandboxes."""

    def __init__(self, doze: AsyncDoze) -> None:
        self._doze = doze

    async def get(self, id: str) -> models.Snapshot:
        return await self._doze.api.get_snapshots_by_snapshot(id)

    async def list(self) -> AsyncIterator[models.Snapshot]:
        """Give the snapshots of the workspace."""
        cursor: str | None = None
        while True:
            page = await self._doze.api.get_snapshots(cursor=cursor)
            for snapshot in page.data:
                yield snapshot
            cursor = page.next_cursor
            if cursor is None:
                return

    async def fork(self, id: str, name: str) -> AsyncSandbox:
        """Start a sandbox that goes on from a snapshot."""
        request = models.ForkRequest(target_name=name, target_type="sandbox")
        await self._doze.api.post_snapshots_by_snapshot_fork(id, request, timeout=_START)
        return await self._doze.sandboxes.get(name)

    async def delete(self, id: str) -> None:
        await self._doze.api.delete_snapshots_by_snapshot(id)


class AsyncVolumes:
    """The volumes of the workspace: disks that outlive sandboxes."""

    def __init__(self, doze: AsyncDoze) -> None:
        self._doze = doze

    async def create(
        self, name: str, *, size: int | None = None, template: str | None = None, labels: Mapping[str, str] | None = None
    ) -> models.Volume:
        """Create a volume. ``size`` is in MiB."""
        request = models.VolumeRequest(
            metadata=models.MetadataRequest(name=name, labels=dict(labels) if labels else None),
            spec=models.VolumeSpec(size=size, template=template),
        )
        return await self._doze.api.post_volumes(request, timeout=_START)

    async def get(self, name: str) -> models.Volume:
        return await self._doze.api.get_volumes_by_volume(name)

    async def list(self) -> AsyncIterator[models.Volume]:
        """Give the volumes of the workspace."""
        cursor: str | None = None
        while True:
            page = await self._doze.api.get_volumes(cursor=cursor)
            for volume in page.data:
                yield volume
            cursor = page.next_cursor
            if cursor is None:
                return

    async def delete(self, name: str) -> None:
        await self._doze.api.delete_volumes_by_volume(name)
