package agent

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/dozehq/doze/internal/agent/account"
	"github.com/dozehq/doze/internal/agent/child"
	"github.com/dozehq/doze/internal/agent/drive"
	"github.com/dozehq/doze/internal/agent/entrypoint"
	"github.com/dozehq/doze/internal/agent/environ"
	"github.com/dozehq/doze/internal/agent/etc"
	"github.com/dozehq/doze/internal/agent/export"
	"github.com/dozehq/doze/internal/agent/file"
	"github.com/dozehq/doze/internal/agent/identity"
	"github.com/dozehq/doze/internal/agent/memory"
	"github.com/dozehq/doze/internal/agent/netstate"
	"github.com/dozehq/doze/internal/agent/place"
	"github.com/dozehq/doze/internal/agent/port"
	"github.com/dozehq/doze/internal/agent/process"
	"github.com/dozehq/doze/internal/agent/serve"
	"github.com/dozehq/doze/internal/agent/sshd"
	"github.com/dozehq/doze/internal/agent/system"
	"github.com/dozehq/doze/internal/agent/terminal"
	"github.com/dozehq/doze/internal/agent/tool"
	"github.com/dozehq/doze/internal/agent/tree"
	"github.com/dozehq/doze/internal/agent/upload"
)

// stopGrace is how long Run lets requests and processes end by themselves.
// The host kills the sandbox when its own, configured grace is over.
const stopGrace = 10 * time.Second

// Config is what an agent needs to know. Its zero value works.
type Config struct {
	Version string
	// Env is the environment of the agent, as KEY=value: commands and
	// terminals inherit it, and WORKDIR, HOME, SHELL, SHELL_ARGS and
	// DISABLE_TERMINAL steer the agent. DOZE_USER and DOZE_WORKDIR are what the
	// image says about its processes; nobody inherits these.
	Env []string
	// LogDir keeps the output of processes; empty means /var/log/doze. What an
	// earlier agent left there is deleted.
	LogDir string
	// UploadDir keeps the parts of files that come in parts; empty means
	// /var/lib/doze/uploads. What an earlier agent left there is deleted.
	UploadDir string
	// Root is where the agent keeps the files true that name the sandbox, in
	// etc below it, and where it unpacks those of an archive; empty means
	// nowhere.
	Root string
	// Init says that this is the first process of the system. Its orphans
	// become its children, which it then has to collect, and it has a power
	// that nobody else may have, see package identity.
	Init bool
}

// Agent is the API of one sandbox. Create it with [New]; it does its work
// while [Agent.Run] runs.
type Agent struct {
	born      netstate.State // before any process ran
	children  *child.Reaper
	vars      *environ.Variables
	processes *process.Table
	terminals *terminal.Terminals
	uploads   *upload.Store
	drives    drive.Set
	system    *system.System
	identity  *identity.Identity
	files     *file.Calls
	trees     *tree.Calls
	calls     *process.Calls
	entry     *entrypoint.Entrypoint
	monitors  *port.Monitors
	archives  *export.Exporter
	tools     *tool.Set
	mounts    *drive.Calls
	ssh       *sshd.Server
	server    *serve.Server
	outside   bool // it answers nobody from inside
}

// New returns an agent that listens to nobody yet.
func New(cfg Config) *Agent {
	host := environ.List(cfg.Env)
	who := account.New(host.Get(environ.ImageUser))
	dir := workDir(host)
	logs := cmp.Or(cfg.LogDir, "/var/log/doze")
	_ = os.RemoveAll(logs) // best effort: nothing reads what is left
	version := cmp.Or(cfg.Version, "dev")
	a := &Agent{
		born:     netstate.Read(),
		children: child.New(cfg.Init),
		vars:     environ.New(host.Inherited(who.Home())),
		uploads:  upload.New(cmp.Or(cfg.UploadDir, "/var/lib/doze/uploads")),
		system:   system.New(version),
	}
	start := child.Launcher{Children: a.children, Vars: a.vars, User: who, Dir: dir}
	at := place.New(a.vars, dir)
	a.processes = process.New(start, logs)
	a.terminals = terminal.New(start)
	builder := host.Get(environ.Builder) != ""
	a.outside = builder
	a.identity = identity.New(cfg.Root, identity.Power{First: cfg.Init, Stays: builder || host.Get(environ.Containers) != ""}, etc.New(cfg.Root, host), a.vars, who, &a.drives, func() { a.system.Renew(); a.processes.ForgetOutput() })
	a.files = file.New(at, who, a.uploads)
	a.trees = tree.New(at, a.files, a.uploads.Temp)
	a.calls = process.NewCalls(a.processes)
	a.entry = entrypoint.New(a.processes, start)
	a.monitors = port.New(a.processes)
	a.ssh = sshd.New(start)
	a.archives = export.New(version, cfg.Root, a.processes, func() { a.terminals.EndAll(); a.ssh.EndAll() }, a.vars)
	a.tools = tool.New(at, a.files, a.processes, a.vars)
	a.mounts = drive.NewCalls(&a.drives, who)
	a.server = serve.New(a.routes(), a.vars, a.archives.Frozen, memory.Total())
	return a
}

// workDir returns where commands start, as the host says.
func workDir(host environ.List) string {
	dir := host.Get(environ.ImageDir)
	if dir == "" {
		var err error
		if dir, err = os.Getwd(); err != nil {
			dir = "/" // deleted under us; absolute paths still work
		}
	}
	return filepath.Join("/", dir)
}

// Run serves ln until ctx ends; then it stops every process and terminal, and
// returns when the last of them is gone. It closes ln.
func (a *Agent) Run(ctx context.Context, ln net.Listener) error {
	calls, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer hangUp()
	srv := a.server.HTTP(calls)
	reaping, stopReaping := context.WithCancel(context.WithoutCancel(ctx))
	var tasks sync.WaitGroup
	tasks.Go(func() { a.children.Run(reaping) })
	served := make(chan error, 1)
	if a.outside {
		ln = serve.Outside(ln)
	}
	go func() { served <- srv.Serve(serve.Listen(ln)) }() // drained below

	var err error
	select {
	case <-ctx.Done():
	case err = <-served:
		served <- http.ErrServerClosed
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	a.entry.Close()
	a.terminals.Close()
	a.ssh.Close()
	a.processes.Close(grace) // ends their streams, too
	hangUp()                 // for those that would go on for ever
	if srv.Shutdown(grace) != nil {
		_ = srv.Close() // what still runs has had its time
	}
	a.monitors.Close()
	a.archives.Close()
	a.uploads.Close()
	a.drives.Close()
	stopReaping()
	tasks.Wait()
	if e := <-served; err == nil && !errors.Is(e, http.ErrServerClosed) {
		err = e
	}
	return err
}
