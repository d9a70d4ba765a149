"""The code interpreter: contexts and executions over HTTP, on Jupyter kernels.

POST /contexts {language, cwd} answers {id, language, cwd}. POST /execute {code,
context_id, language, env_vars} answers lines of JSON: see line_of.
"""

import asyncio
import json
import os
import re
import time
import uuid
from queue import Empty

PORT = 8888
LANGUAGE = "python"  # what an execution without context and language means

CONTEXTS_MAX = 16  # each is a process
WAITING_MAX = 32  # executions of one context that run or wait
BODY_MAX = 8 << 20  # bytes of a request
OUTPUT_MAX = 32 << 20  # bytes of the lines of one execution
VARIABLES_MAX = 256
EXECUTION_SECONDS = 24 * 3600  # the client's own time limit ends most before
ABORTS_MAX = 50  # times that a kernel may put off an execution
ABORT_SECONDS = 0.1  # until the next attempt
NOTED_MAX = 1 << 16  # characters of stderr that may tell the error
START_SECONDS = 60  # until a kernel answers
INTERRUPT_SECONDS = 5  # until a kernel that does not heed an interrupt is killed

# Other names of languages.
ALIASES = {"python3": "python", "py": "python", "js": "javascript", "node": "javascript", "ts": "typescript"}

# The members of a result, by the type of the content.
MEMBERS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "text/latex": "latex",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "application/json": "json",
    "application/javascript": "javascript",
}

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
THROWN = re.compile(r"^(?:Uncaught )?([A-Z]\w*): (.*)$", re.MULTILINE)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Refused(Exception):
    """A request that cannot be served, with its HTTP status."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def text_of(request, name):
    """Returns a member that is a string or not there."""
    value = request.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused(400, f"{name} must be a string")
    return value or None


def object_of(raw, members):
    """Parses the body of a request, which has these members at most."""
    try:
        request = json.loads(raw or b"{}")
    except ValueError as err:  # includes bytes that are no UTF-8
        raise Refused(400, f"the body is not JSON: {err}") from None
    except RecursionError:
        raise Refused(400, "the body is nested too deeply") from None
    if not isinstance(request, dict):
        raise Refused(400, "the body must be an object")
    unknown = sorted(set(request) - members)
    if unknown:
        raise Refused(400, f"unknown member {unknown[0]!r}: the members are {', '.join(sorted(members))}")
    return request


def language_of(name, known):
    """Returns the language of a name. known maps languages to kernels."""
    lower = (name or LANGUAGE).lower()
    language = ALIASES.get(lower, lower)
    if language not in known:
        raise Refused(400, f"no kernel for the language {name!r}: choose one of {', '.join(sorted(known))}")
    return language


def execution_of(raw):
    """Parses the body of POST /execute: code, context id, language, variables."""
    request = object_of(raw, {"code", "context_id", "language", "env_vars"})
    code = request.get("code")
    if not isinstance(code, str):
        raise Refused(400, "code is required: the text to execute")
    context, language = text_of(request, "context_id"), text_of(request, "language")
    if context and language:
        raise Refused(400, "give context_id or language, not both")
    variables = request.get("env_vars") or {}
    if not isinstance(variables, dict) or len(variables) > VARIABLES_MAX:
        raise Refused(400, f"env_vars must be an object with {VARIABLES_MAX} members at most")
    for name, value in variables.items():
        if not VARIABLE.match(name) or not isinstance(value, str) or "\0" in value:
            raise Refused(400, f"env_vars: {name!r} must be the name of a variable, with a string without NUL")
    return code, context, language, variables


def result_of(data, main):
    """Returns the line of a result. main says that it is the value of the last expression."""
    line = {"type": "result", "is_main_result": main}
    extra = {}
    for mime, value in data.items():
        if mime in MEMBERS:
            line[MEMBERS[mime]] = value
        else:
            extra[mime] = value
    if extra:
        line["extra"] = extra
    return line


def line_of(kind, content, now):
    """Returns the line of a message of a kernel, or None."""
    if kind == "stream":
        name = "stderr" if content.get("name") == "stderr" else "stdout"
        return {"type": name, "text": content.get("text", ""), "timestamp": now}
    if kind == "execute_result":
        return result_of(content.get("data", {}), True)
    if kind in ("display_data", "update_display_data"):
        return result_of(content.get("data", {}), False)
    if kind == "error":
        return error_of(content.get("ename", ""), content.get("evalue", ""), content.get("traceback", []))
    if kind == "execute_input":
        return {"type": "number_of_executions", "execution_count": content.get("execution_count")}
    return None


def error_of(name, value, traceback=()):
    """Returns the line of an error. Colours of terminals are left out."""
    plain = COLOURS.sub("", "\n".join(traceback))
    return {"type": "error", "name": COLOURS.sub("", name), "value": COLOURS.sub("", value), "traceback": plain}


def thrown(noted):
    """Returns the line of an error that a kernel wrote to stderr alone, as tslab does."""
    found = THROWN.search(noted)
    if found:
        return error_of(found[1], found[2], [noted])
    return error_of("Error", noted.strip().partition("\n")[0], [noted])


# SAVED names the place in a kernel where values wait until an execution has ended.
SAVED = "_interpreter_saved"


def needed(language, variables):
    """Returns the code before and after an execution with variables.

    The kernel itself keeps the values that it had: only it knows what earlier code has set.
    """
    if not variables:
        return None, None
    text = json.dumps(variables)
    if language == "python":
        return (
            f"(lambda new, env, sys: (setattr(sys, {SAVED!r}, {{name: env.get(name) for name in new}}), env.update(new)))"
            f"(__import__('json').loads({text!r}), __import__('os').environ, __import__('sys'))",
            "(lambda env, sys: [env.pop(name, None) if value is None else env.__setitem__(name, value)"
            f" for name, value in sys.__dict__.pop({SAVED!r}, {{}}).items()])"
            "(__import__('os').environ, __import__('sys'))",
        )
    return (
        f"Reflect.set(process, {json.dumps(SAVED)}, Object.entries(JSON.parse({json.dumps(text)})).map(function (pair) {{ "
        "const old = process.env[pair[0]]; process.env[pair[0]] = String(pair[1]); return [pair[0], old]; }));",
        f"for (const pair of Reflect.get(process, {json.dumps(SAVED)}) || []) {{ "
        "if (pair[1] === undefined) delete process.env[pair[0]]; else process.env[pair[0]] = pair[1]; } "
        f"Reflect.deleteProperty(process, {json.dumps(SAVED)});",
    )


class Context:
    """A kernel and those who wait for it. Executions take turns."""

    def __init__(self, language, kernel, cwd):
        self.id = str(uuid.uuid4())
        self.language, self.kernel, self.cwd = language, kernel, cwd
        self.turn = asyncio.Lock()
        self.waiting = 0  # with the one that runs
        self.closed = False
        self.manager = self.client = None

    async def start(self):
        """Starts the kernel, in place of one that has ended."""
        from jupyter_client.manager import AsyncKernelManager

        await self.stop()
        self.manager = AsyncKernelManager(kernel_name=self.kernel)
        try:
            await self.manager.start_kernel(cwd=self.cwd)
            self.client = self.manager.client()
            self.client.start_channels()
            await self.client.wait_for_ready(timeout=START_SECONDS)
        except BaseException as err:
            await self.stop()
            if isinstance(err, Exception):
                raise Refused(503, f"the kernel for {self.language} does not start: {err}") from err
            raise

    async def stop(self):
        client, manager, self.client, self.manager = self.client, self.manager, None, None
        if client:
            client.stop_channels()
        if manager:
            await manager.shutdown_kernel(now=True)

    async def alive(self):
        return self.manager is not None and await self.manager.is_alive()

    async def execute(self, code, write, silent=False):
        """Executes code, and calls write for each line. Preconditions: the caller has the turn.

        Raises Died if the kernel ended.
        """
        for _ in range(ABORTS_MAX):
            if await self.attempt(code, write, silent):
                return
            await asyncio.sleep(ABORT_SECONDS)  # tslab refuses for 200 ms after an error
        raise Refused(503, "the kernel refuses to execute: restart the context")

    async def attempt(self, code, write, silent):
        """Executes code once. It returns False if the kernel aborted it."""
        message = self.client.execute(code, silent=silent, store_history=not silent, allow_stdin=False, stop_on_error=False)
        seen, noted = set(), ""
        while True:
            reply = await self.reply(self.client.get_iopub_msg, message)
            kind, content = reply["header"]["msg_type"], reply["content"]
            if kind == "status" and content.get("execution_state") == "idle":
                break
            line = line_of(kind, content, time.time())
            if line is not None:
                seen.add(line["type"])
                if line["type"] == "stderr":
                    noted = (noted + line["text"])[:NOTED_MAX]
                await write(line)
        result = (await self.reply(self.client.get_shell_msg, message))["content"]
        if result.get("status") in ("abort", "aborted"):
            return False
        if "number_of_executions" not in seen and result.get("execution_count") is not None:
            await write({"type": "number_of_executions", "execution_count": result["execution_count"]})
        if result.get("status") == "error" and "error" not in seen:
            await write(thrown(noted))
        return True

    async def reply(self, receive, message):
        """Returns the next answer to a message. Others are of threads that earlier executions left."""
        while True:
            try:
                reply = await receive(timeout=1)
            except Empty:
                if not await self.alive():
                    raise Died() from None
                continue
            if reply["parent_header"].get("msg_id") == message:
                return reply

    async def interrupt(self):
        """Ends an execution whose caller is gone. A kernel that goes on is killed."""
        try:
            await self.manager.interrupt_kernel()
            self.client.kernel_info()
            async with asyncio.timeout(INTERRUPT_SECONDS):
                while True:  # the answer comes after all that ran before
                    reply = await self.client.get_shell_msg(timeout=INTERRUPT_SECONDS)
                    if reply["header"]["msg_type"] == "kernel_info_reply":
                        return
        except Exception:
            await self.stop()


class Died(Exception):
    """The kernel ended during an execution."""


class Output:
    """The lines of one execution, with a bound."""

    def __init__(self, send):
        self.send, self.bytes, self.full = send, 0, False

    async def write(self, line):
        if self.full:
            return
        raw = json.dumps(line).encode() + b"\n"
        self.bytes += len(raw)
        if self.bytes > OUTPUT_MAX:
            self.full = True
            raise TooMuch()
        await self.send(raw)


class TooMuch(Exception):
    """An execution wrote more than OUTPUT_MAX."""


class Interpreter:
    """All contexts, by their ids, and the default context of each language."""

    def __init__(self, kernels):
        self.kernels = kernels  # of each language, the name of its kernel
        self.contexts, self.defaults = {}, {}
        self.making = asyncio.Lock()

    async def create(self, language, cwd):
        language = language_of(language, self.kernels)
        cwd = cwd or os.getcwd()
        if not os.path.isdir(cwd):
            raise Refused(400, f"cwd: there is no directory {cwd}")
        if len(self.contexts) >= CONTEXTS_MAX:
            raise Refused(429, f"there are {CONTEXTS_MAX} contexts already: delete one")
        context = Context(language, self.kernels[language], cwd)
        self.contexts[context.id] = context  # before the start, so that it counts
        try:
            await context.start()
        except BaseException:
            del self.contexts[context.id]
            raise
        return context

    def get(self, name):
        if name not in self.contexts:
            raise Refused(404, f"there is no context {name!r}: POST /contexts makes one")
        return self.contexts[name]

    async def chosen(self, name, language):
        """Returns the context of an execution."""
        if name:
            return self.get(name)
        language = language_of(language, self.kernels)
        async with self.making:
            if language not in self.defaults:
                self.defaults[language] = await self.create(language, None)
            return self.defaults[language]

    async def delete(self, name):
        context = self.get(name)
        del self.contexts[name]
        context.closed = True
        if self.defaults.get(context.language) is context:
            del self.defaults[context.language]
        await context.stop()

    async def execute(self, context, code, variables, send):
        """Executes code in turn. Cancellation interrupts the kernel."""
        if context.waiting >= WAITING_MAX:
            raise Refused(429, f"{WAITING_MAX} executions of this context wait already: try again later")
        context.waiting += 1
        try:
            async with context.turn:
                await self.run(context, code, variables, Output(send))
        finally:
            context.waiting -= 1

    async def run(self, context, code, variables, output):
        if context.closed:
            raise Refused(404, "the context was deleted")
        if not await context.alive():
            await context.start()
        before, after = needed(context.language, variables)

        async def nothing(_):
            pass

        try:
            async with asyncio.timeout(EXECUTION_SECONDS):
                if before:
                    await context.execute(before, nothing, silent=True)
                await context.execute(code, output.write)
        except Died:
            await context.stop()
            output.full = False
            await output.write(error_of("KernelDied", "the kernel ended: its variables are lost, and the next execution begins anew"))
            return
        except TooMuch:
            await context.interrupt()
            output.full, output.bytes = False, 0
            await output.write(error_of("OutputTooLarge", f"the execution was interrupted: it wrote more than {OUTPUT_MAX} bytes"))
        except TimeoutError:
            await context.interrupt()
            await output.write(error_of("ExecutionTimeout", f"the execution was interrupted after {EXECUTION_SECONDS} seconds"))
        except BaseException:  # the caller hung up
            await asyncio.shield(context.interrupt())
            raise
        finally:
            if after and await context.alive():
                await context.execute(after, nothing, silent=True)


def application(interpreter):
    """Returns the HTTP server of an interpreter."""
    from tornado import iostream, web

    class Handler(web.RequestHandler):
        def write_error(self, status_code, **kwargs):
            err = kwargs.get("exc_info", (None, None, None))[1]
            known = isinstance(err, (Refused, web.HTTPError))
            if isinstance(err, Refused):
                self.set_status(err.status)
            self.finish({"error": str(err) if known else "internal error: see the log of the process entrypoint"})

        def log_exception(self, kind, value, trace):
            if not isinstance(value, Refused):
                super().log_exception(kind, value, trace)

    def shown(context):
        return {"id": context.id, "language": context.language, "cwd": context.cwd}

    class Contexts(Handler):
        def get(self):
            self.finish({"contexts": [shown(c) for c in interpreter.contexts.values()]})

        async def post(self):
            request = object_of(self.request.body, {"language", "cwd"})
            self.finish(shown(await interpreter.create(text_of(request, "language"), text_of(request, "cwd"))))

    class One(Handler):
        def get(self, name):
            self.finish(shown(interpreter.get(name)))

        async def delete(self, name):
            await interpreter.delete(name)
            self.set_status(204)

    class Restart(Handler):
        async def post(self, name):
            context = interpreter.get(name)
            await context.stop()  # what runs ends with KernelDied
            async with context.turn:
                if not await context.alive():
                    await context.start()
            self.finish(shown(context))

    class Health(Handler):
        def get(self):
            self.finish({"status": "ok", "languages": sorted(interpreter.kernels)})

    class Execute(Handler):
        task = None

        def on_connection_close(self):
            if self.task:
                self.task.cancel()

        async def send(self, raw):
            try:
                self.write(raw)
                await self.flush()
            except iostream.StreamClosedError:
                pass  # on_connection_close ends the execution

        async def post(self):
            code, name, language, variables = execution_of(self.request.body)
            context = await interpreter.chosen(name, language)
            self.set_header("Content-Type", "application/x-ndjson")
            self.task = asyncio.current_task()
            try:
                await interpreter.execute(context, code, variables, self.send)
            except asyncio.CancelledError:
                return  # nobody reads an answer

    return web.Application([
        (r"/", Health),
        (r"/health", Health),
        (r"/contexts", Contexts),
        (r"/contexts/([^/]+)", One),
        (r"/contexts/([^/]+)/restart", Restart),
        (r"/execute", Execute),
    ])


async def main():
    from jupyter_client.kernelspec import KernelSpecManager

    specs = KernelSpecManager().get_all_specs()
    kernels = {spec["spec"]["language"].lower(): name for name, spec in specs.items()}
    application(Interpreter(kernels)).listen(PORT, max_body_size=BODY_MAX)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
