package attack_test

import (
	"context"
	"strings"
	"testing"

	"github.com/dozehq/doze/client"
)

// guests run inside a sandbox of the attacker, as root.
var guests = []attack{
	{"guest", "files that fill the memory", fillFiles},
	{"guest", "processes without end", forkBomb},
	{"guest", "memory without end", fillMemory},
	{"guest", "output without end", chatter},
	{"guest", "connections to the outside without end", dialOut},
	{"guest", "questions of the DNS without end", resolveOut},
	{"guest", "an end of the first process", killFirst},
}

// inside runs a script of Python in a sandbox of the attacker until ctx ends or
// the script does.
func (w *world) inside(ctx context.Context, t *testing.T, script string) {
	t.Helper()
	sb, err := w.hostile.Create(t.Context(), sandbox("guest", 1024), false)
	if err != nil {
		t.Fatal(err)
	}
	defer w.forget(t)
	agent, err := w.hostile.Agent(sb)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := agent.WriteFile(t.Context(), "/attack.py", strings.NewReader(script), "0644"); err != nil {
		t.Fatal(err)
	}
	w.tried.Add(1)
	if _, err := agent.Run(ctx, client.Command{Command: "exec python3 -u /attack.py"}, ignore); err != nil && ctx.Err() == nil {
		w.refused.Add(1) // the sandbox did not survive its own attack
		wait(ctx, wholeTime)
	}
}

// ignore takes what the attack prints.
func ignore(client.Channel, string) error { return nil }

func fillFiles(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	w.inside(ctx, t, `
import itertools, time
block = bytes(1 << 20)
while True:
    for d in ("/", "/tmp", "/dev/shm", "/var/tmp"):
        try:
            for n in itertools.count():
                with open(f"{d}/fill-{n}", "ab", buffering=0) as f:
                    for _ in range(64): f.write(block)
        except OSError as e: print(d, e)
    time.sleep(.5)
`)
}

func fillMemory(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	w.inside(ctx, t, `
import os, time
while True:
    if os.fork() == 0:
        held = []
        while True:
            b = bytearray(16 << 20)
            for i in range(0, len(b), 4096): b[i] = 1
            held.append(b)
    try: os.waitpid(-1, os.WNOHANG)
    except OSError: pass
    time.sleep(.2)
`)
}

func forkBomb(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	w.inside(ctx, t, `
import os, time
while True:
    try: os.fork()
    except OSError: time.sleep(.01)
`)
}

func chatter(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	w.inside(ctx, t, `
import os
line = b"x" * 65536
while True:
    os.write(1, line)
    os.write(2, line)
`)
}

func dialOut(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	w.inside(ctx, t, `
import socket, time
at = socket.gethostbyname("`+outside+`")
held = []
while True:
    s = socket.socket()
    s.setblocking(False)
    try:
        s.connect_ex((at, 80))
        held.append(s)
    except OSError:
        held = held[len(held) // 2:]
        time.sleep(.1)
`)
}

func resolveOut(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	w.inside(ctx, t, `
import os, socket, struct
server = "127.0.0.1"
for line in open("/etc/resolv.conf"):
    if line.startswith("nameserver"): server = line.split()[1]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
n = 0
while True:
    n += 1
    label = os.urandom(16).hex().encode()
    q = struct.pack(">HHHHHH", n & 0xffff, 0x100, 1, 0, 0, 0) + bytes([len(label)]) + label + b"\x07outside\x04test\x00\x00\x01\x00\x01"
    try: s.sendto(q, (server, 53))
    except OSError: pass
`)
}

func killFirst(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	w.inside(ctx, t, `
import os, signal, time
while True:
    for s in (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGTERM):
        try: os.kill(1, s)
        except OSError: pass
    time.sleep(.1)
`)
}
