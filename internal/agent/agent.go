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
	"sync/atomic"
	"time"

	"github.com/dozehq/doze/internal/agent/drive"
	"github.com/dozehq/doze/internal/agent/upload"
)

// The server has no read or write timeout: both bound the whole life of a
// request and would cut every stream.
const (
	headerTimeout = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	headerMax     = 1 << 20

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
	version   string
	vars      *variables
	who       workload
	cwd       string // of relative paths of files, unless a variable says
	names     *names
	root      string // empty means that there is none
	power     power
	net       netstate // before any process ran
	children  *reaper
	processes *table
	terminals *terminals
	uploads   *upload.Store
	monitors  *monitors
	archives  *archiver
	drives    drive.Set
	mcp       func() http.Handler // made by the first call: it is not small
	watches   atomic.Int32        // streams of changes that are open
	bodies    bodies
	trim      trimmer

	mu      sync.Mutex
	started time.Time // guarded by mu
	wakes   int       // guarded by mu
	woken   time.Time // guarded by mu
	upgrade upgrade   // guarded by mu: the last one that was asked for
}

// New returns an agent that listens to nobody yet.
func New(cfg Config) *Agent {
	host := environ(cfg.Env)
	who := workload{user: host.get(userEnv), etc: "/etc"}
	env := inherited(host, who)
	dir := host.get(workDirEnv)
	if dir == "" {
		var err error
		if dir, err = os.Getwd(); err != nil {
			dir = "/" // deleted under us; absolute paths still work
		}
	}
	dir = filepath.Join("/", dir)
	logs := cmp.Or(cfg.LogDir, "/var/log/doze")
	_ = os.RemoveAll(logs) // best effort: nothing reads what is left
	children := newReaper(cfg.Init)
	vars := newVariables(env)
	start := launcher{children, vars, who, dir}
	processes := newTable(start, logs)
	a := &Agent{
		version:   cmp.Or(cfg.Version, "dev"),
		vars:      vars,
		who:       who,
		cwd:       dir,
		names:     newNames(cfg.Root, host),
		root:      cfg.Root,
		net:       readNetstate(),
		started:   time.Now(),
		children:  children,
		processes: processes,
		terminals: newTerminals(start),
		monitors:  newMonitors(processes),
		archives:  newArchiver(),
		bodies:    bodies{max: memory() / 100 * bodiesShare},
		uploads:   upload.New(cmp.Or(cfg.UploadDir, "/var/lib/doze/uploads")),
	}
	a.power.held = cfg.Init
	a.upgrade = upgrade{Status: "idle", Step: "none", Version: a.version}
	a.mcp = sync.OnceValue(a.newMCP)
	return a
}

// inherited returns the variables of commands and terminals out of those that
// the host gave to the agent.
func inherited(host environ, who workload) environ {
	return host.without(hostEnv...).overflow().complete(who.home())
}

// workDir is the directory of relative paths of files.
func (a *Agent) workDir() string {
	return filepath.Join("/", cmp.Or(a.vars.given().get("WORKDIR"), a.cwd))
}

// server returns who answers by a, calls at most until ctx ends. How long a body
// or an answer takes has no limit.
func (a *Agent) server(ctx context.Context) *http.Server {
	return &http.Server{
		Handler:           a,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerMax,
	}
}

// Run serves ln until ctx ends; then it stops every process and terminal, and
// returns when the last of them is gone. It closes ln.
func (a *Agent) Run(ctx context.Context, ln net.Listener) error {
	calls, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer hangUp()
	srv := a.server(calls)
	reaping, stopReaping := context.WithCancel(context.WithoutCancel(ctx))
	var tasks sync.WaitGroup
	tasks.Go(func() { a.children.run(reaping) })
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener{ln}) }() // drained below

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
