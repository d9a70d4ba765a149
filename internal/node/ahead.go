package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/dozehq/doze/internal/machine"
)

const (
	// wantsMax bounds the queue of what is to be started ahead. What does not
	// fit in is wanted again by the next create.
	wantsMax = 16

	// aheadTimeout bounds the making of one spare machine.
	aheadTimeout = 2 * time.Minute

	// aheadEnd bounds the end of all spare machines when the node stops. The next process
	// ends those that are left.
	aheadEnd = 10 * time.Second
)

// machineDir is the directory in Options.Ahead of machines that were started
// ahead, by id.
const machineDir = "machines"

// ahead is what the node starts before anybody asks for it: spare machines that
// have booted and are nobody's yet. A sandbox that begins as one of them skips
// the boot, and its agent learns whose it is when it is taken (see introduce).
type ahead struct {
	n     *Node
	wants chan machine.Config // what a sandbox was made of just now

	mu     sync.Mutex
	spares []*spare // guarded by mu; the oldest first
}

func newAhead(n *Node) *ahead { return &ahead{n: n, wants: make(chan machine.Config, wantsMax)} }

// key names what all machines have in common that a spare machine can become: all
// of their configuration but what a sandbox brings along.
func key(c machine.Config) string {
	c.ID, c.Dir, c.Hostname, c.Link, c.Volumes, c.GoBack, c.From = "", "", "", machine.Link{}, nil, false, ""
	raw, err := json.Marshal(c)
	if err != nil {
		panic(err) // it has nothing that JSON has not
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// open removes what an earlier process began. Of an earlier version there may be
// copies of machines, which nobody uses.
func (a *ahead) open(owned func(id string) bool) error {
	if a.n.Ahead == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(a.n.Ahead, machineDir), 0o700); err != nil {
		return err
	}
	return errors.Join(
		removeOthers(a.n.Ahead, func(name string) bool { return name == machineDir }),
		removeOthers(filepath.Join(a.n.Ahead, machineDir), owned),
	)
}

// removeOthers removes what wanted does not name in a directory.
func removeOthers(dir string, wanted func(name string) bool) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !wanted(e.Name()) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
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
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), aheadEnd)
		defer cancel()
		a.shrink(last, 0, time.Time{})
	}()
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

// provide makes so many spare machines for what is like c.
func (a *ahead) provide(ctx context.Context, c machine.Config, spares int) error {
	if a.n.Ahead == "" || a.n.short() || a.n.over(ctx) {
		return nil
	}
	if err := a.fill(ctx, c, spares); !errors.Is(err, machine.ErrNoMemory) {
		return err
	}
	return nil
}
