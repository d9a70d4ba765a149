package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"doze/internal/machine"
	"doze/internal/trace"
)

const (
	// templatesMax bounds the templates on disk, which take about 25 MB each.
	// Those that were not used for the longest time leave.
	templatesMax = 16

	// wantsMax bounds the queue of what is to be started ahead. What does not
	// fit in is wanted again by the next create.
	wantsMax = 16

	// aheadTimeout bounds the making of one template or spare machine.
	aheadTimeout = 2 * time.Minute
)

// Names in Options.Ahead.
const (
	templateDir = "templates" // copies, by what new machines run in, and by key
	machineDir  = "machines"  // of machines that were started ahead, by id
)

// ahead is what the node starts before anybody asks for it: templates, which are
// copies of machines whose agents have just answered for the first time, and
// spare machines that go on from them and are nobody's yet. A sandbox that
// begins as one of them skips the boot, and its agent learns whose it is when it
// is taken (see introduce).
type ahead struct {
	n     *Node
	wants chan machine.Config // what a sandbox was made of just now

	mu     sync.Mutex
	spares []*spare // guarded by mu; the oldest first
}

func newAhead(n *Node) *ahead { return &ahead{n: n, wants: make(chan machine.Config, wantsMax)} }

// key names what all machines have in common that a template is for.
func key(c machine.Config) string {
	raw, err := json.Marshal(machine.Config{Root: c.Root, Agent: c.Agent, Args: c.Args, Memory: c.Memory, CPUs: c.CPUs, Env: c.Env, IPTables: c.IPTables, Tun: c.Tun})
	if err != nil {
		panic(err) // it has nothing that JSON has not
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

func (a *ahead) template(key string) string { return filepath.Join(a.templates(), key) }

// templates is the directory of those that new machines can go on from.
func (a *ahead) templates() string { return filepath.Join(a.n.Ahead, templateDir, a.n.Engine) }

// open removes what an earlier process began.
func (a *ahead) open(keep func(id string) bool) error {
	if a.n.Ahead == "" {
		return nil
	}
	for _, dir := range []string{a.templates(), filepath.Join(a.n.Ahead, machineDir)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return errors.Join(
		removeOthers(filepath.Join(a.n.Ahead, templateDir), func(name string) bool { return name == a.n.Engine }),
		removeOthers(filepath.Join(a.n.Ahead, machineDir), keep),
		a.prune(),
	)
}

// removeOthers removes what keep does not name in a directory.
func removeOthers(dir string, keep func(name string) bool) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !keep(e.Name()) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// prune removes unfinished templates, and those that were not used for the
// longest time if there are too many.
func (a *ahead) prune() error {
	entries, err := os.ReadDir(a.templates())
	if err != nil {
		return err
	}
	type template struct {
		dir  string
		used time.Time
	}
	var all []template
	var errs []error
	for _, e := range entries {
		dir := a.template(e.Name())
		info, err := e.Info()
		if raw, bad := hex.DecodeString(e.Name()); bad != nil || len(raw) != sha256.Size || err != nil {
			errs = append(errs, os.RemoveAll(dir))
			continue
		}
		all = append(all, template{dir, info.ModTime()})
	}
	slices.SortFunc(all, func(x, y template) int { return y.used.Compare(x.used) })
	for _, t := range all[min(len(all), templatesMax):] {
		errs = append(errs, a.n.Driver.Discard(t.dir))
	}
	return errors.Join(errs...)
}

// start starts the machine of a new sandbox: out of a template, if there is one
// and it works, or else as its configuration says.
func (a *ahead) start(ctx context.Context, c machine.Config) (machine.Machine, error) {
	dir := a.template(key(c))
	if _, err := os.Stat(dir); err == nil && a.n.Ahead != "" && c.From == "" && len(c.Volumes) == 0 {
		from := c
		from.From = dir
		trace.Of(ctx).Comes(trace.FromTemplate)
		m, err := a.n.Driver.Boot(ctx, from)
		if err == nil {
			_ = os.Chtimes(dir, time.Time{}, time.Now()) // it stays longer
			return m, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		slog.Warn("a template does not work", "sandbox", c.ID, "err", err)
		if errors.Is(err, machine.ErrDamaged) { // it is made again
			if err := a.n.Driver.Discard(dir); err != nil {
				return nil, fmt.Errorf("remove a template: %w", err)
			}
		}
	}
	if c.From == "" {
		trace.Of(ctx).Comes(trace.FromImage)
	} else {
		trace.Of(ctx).Comes(trace.FromSnapshot)
	}
	return a.n.Driver.Boot(ctx, c)
}

// want says that more sandboxes like c may come. It does not wait.
func (a *ahead) want(c machine.Config) {
	if c.From != "" {
		return // who goes on from a snapshot is like no other
	}
	select {
	case a.wants <- c:
	default:
	}
}

// run starts ahead what is wanted, one thing at a time, until ctx ends. Then it
// ends what is nobody's.
func (a *ahead) run(ctx context.Context) {
	idle := time.NewTicker(spareIdle)
	defer idle.Stop()
	defer a.shrink(context.WithoutCancel(ctx), 0, time.Time{})
	lately := demand{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-idle.C:
			a.shrink(ctx, 0, time.Now().Add(-spareIdle))
		case c := <-a.wants:
			spares := max(a.n.Spares, min(lately.note(key(c), time.Now()), a.n.SparesMax))
			if err := a.provide(ctx, c, spares); err != nil && ctx.Err() == nil {
				slog.Warn("start a machine ahead", "err", err)
			}
		}
	}
}

// provide makes the template and so many spare machines for what is like c.
func (a *ahead) provide(ctx context.Context, c machine.Config, spares int) error {
	if a.n.Ahead == "" || a.n.short() || a.n.over(ctx) {
		return nil
	}
	if _, err := os.Stat(a.template(key(c))); err != nil {
		if err := a.makeTemplate(ctx, c); errors.Is(err, errNoMemory) {
			return nil
		} else if err != nil {
			return fmt.Errorf("make a template: %w", err)
		}
		slog.Info("made a template", "image", filepath.Base(c.Root), "memory", c.Memory)
	}
	if err := a.fill(ctx, c, spares); !errors.Is(err, errNoMemory) {
		return err
	}
	return nil
}

// makeTemplate boots a machine and copies it when its agent answers.
func (a *ahead) makeTemplate(ctx context.Context, c machine.Config) error {
	ctx, cancel := context.WithTimeout(ctx, aheadTimeout)
	defer cancel()
	s, err := a.launch(ctx, c)
	if err != nil {
		return err
	}
	release, err := roomFor(ctx, s, a.n.Room)
	if err != nil {
		return errors.Join(err, s.end(context.WithoutCancel(ctx)))
	}
	defer release()
	return errors.Join(s.Keep(ctx, a.template(key(c))), s.end(context.WithoutCancel(ctx)), a.prune())
}
