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

	"github.com/dozehq/doze/internal/agent/drive"
	"github.com/dozehq/doze/internal/agent/upload"
)

const (
	// stopGrace is how long Run lets requests and processes end by themselves.
	// The host kills the sandbox when its own, configured grace is over.
	stopGrace = 10 * time.Second
)

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
	// that nobody else may have, see power.
	Init bool
}

// Agent is the API of one sandbox. Create it with [New]; it does its work
// while [Agent.Run] runs.
type Agent struct {
	born      netstate // before any process ran
	children  *reaper
	vars      *variables
	processes *table
	terminals *terminals
	uploads   *upload.Store
	drives    drive.Set
	system    *system
	identity  *identity
	files     *fileCalls
	trees     *treeCalls
	calls     *processCalls
	monitors  *monitors
	archives  *archiver
	tools     *toolbox
	mounts    *driveCalls
	server    *server
}

// New returns an agent that listens to nobody yet.
func New(cfg Config) *Agent {
	host := environ(cfg.Env)
	who := newWorkload(host.get(userEnv))
	dir := workDir(host)
	logs := cmp.Or(cfg.LogDir, "/var/log/doze")
	_ = os.RemoveAll(logs) // best effort: nothing reads what is left
	version := cmp.Or(cfg.Version, "dev")
	a := &Agent{
		born:     readNetstate(),
		children: newReaper(cfg.Init),
		vars:     newVariables(host.inherited(who.home())),
		uploads:  upload.New(cmp.Or(cfg.UploadDir, "/var/lib/doze/uploads")),
		system:   newSystem(version),
	}
	start := launcher{a.children, a.vars, who, dir}
	at := newPlaces(a.vars, dir)
	a.processes = newTable(start, logs)
	a.terminals = newTerminals(start)
	a.identity = newIdentity(cfg.Root, cfg.Init, newNames(cfg.Root, host), a.vars, who, &a.drives, a.system.renew)
	a.files = newFileCalls(at, who, a.uploads)
	a.trees = newTreeCalls(at, a.files, a.uploads.Temp)
	a.calls = newProcessCalls(a.processes)
	a.monitors = newMonitors(a.processes)
	a.archives = newArchiver(version, cfg.Root, a.processes, a.terminals, a.vars)
	a.tools = newToolbox(at, a.files, a.processes, a.vars)
	a.mounts = newDriveCalls(&a.drives, who)
	a.server = newServer(a.routes(), a.vars, a.archives.frozen, memory())
	return a
}

// workDir returns where commands start, as the host says.
func workDir(host environ) string {
	dir := host.get(workDirEnv)
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
	srv := a.server.http(calls)
	reaping, stopReaping := context.WithCancel(context.WithoutCancel(ctx))
	var tasks sync.WaitGroup
	tasks.Go(func() { a.children.run(reaping) })
	served := make(chan error, 1)
	go func() { served <- srv.Serve(newListener(ln)) }() // drained below

	var err error
	select {
	case <-ctx.Done():
	case err = <-served:
		served <- http.ErrServerClosed
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	a.terminals.close()
	a.processes.close(grace) // ends their streams, too
	hangUp()                 // for those that would go on for ever
	if srv.Shutdown(grace) != nil {
		_ = srv.Close() // what still runs has had its time
	}
	a.monitors.close()
	a.archives.close()
	a.uploads.Close()
	a.drives.Close()
	stopReaping()
	tasks.Wait()
	if e := <-served; err == nil && !errors.Is(e, http.ErrServerClosed) {
		err = e
	}
	return err
}
