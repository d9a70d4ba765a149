package environ

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/mistake"
)

const (
	// metadataEnv names the document that a reload reads.
	metadataEnv  = "BL_METADATA_PATH"
	metadataFile = "/bl/metadata"
	// overflowEnv names a file of variables that were too long to be passed on.
	overflowEnv = "BL_ENV_VAR_PATH"
	// Max bounds both files: the kernel takes no more of a command.
	Max = 4 << 20
)

// Variables is the environment that commands and terminals inherit from now on.
type Variables struct {
	base atomic.Pointer[List] // without what a document set
	now  atomic.Pointer[List]

	mu       sync.Mutex
	over     map[string]string // guarded by mu: of the last document
	platform []string          // guarded by mu: names in base that [Variables.SetPlatform] may change
}

// New returns the variables that begin as base.
func New(base List) *Variables {
	v := &Variables{}
	v.Replace(base)
	return v
}

// Replace makes base the variables, and forgets what a document set. Platform are the
// names of those that SetPlatform may change.
func (v *Variables) Replace(base List, platform ...string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.over, v.platform = nil, platform
	v.base.Store(&base)
	v.now.Store(&base)
}

// SetPlatform puts variables of the platform in place of those of the last call. What
// the image or the caller set under the same name stays.
func (v *Variables) SetPlatform(all List) {
	v.mu.Lock()
	defer v.mu.Unlock()
	base := v.Given().without(v.platform...)
	v.platform = nil
	for _, kv := range all {
		name, value, _ := strings.Cut(kv, "=")
		if usable(name, value) && !base.Has(name) {
			base = append(base, kv)
			v.platform = append(v.platform, name)
		}
	}
	now := base.With(v.over)
	v.base.Store(&base)
	v.now.Store(&now)
}

// Given returns the variables that the host gave.
func (v *Variables) Given() List { return *v.base.Load() }

// List returns all variables as they are now.
func (v *Variables) List() List { return *v.now.Load() }

// overlay puts variables in place of those of the last call. It returns how many
// there are now and how many are gone, which get back what they were before.
func (v *Variables) overlay(over map[string]string) (applied, removed int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for name := range v.over {
		if _, still := over[name]; !still {
			removed++
		}
	}
	v.over = over
	now := v.Given().With(over)
	v.now.Store(&now)
	return len(over), removed
}

// usable reports whether the kernel can pass a variable on.
func usable(name, value string) bool {
	return name != "" && !strings.ContainsAny(name, "=\x00") && !strings.ContainsRune(value, 0)
}

// overflow adds the variables of the file that e names, KEY NUL VALUE NUL, but
// for those that are set. What is no variable does not cost the others.
func (e List) overflow() List {
	file := e.Get(overflowEnv)
	if file == "" {
		return e
	}
	b, err := ReadFile(file)
	if err != nil {
		return e // the sandbox must start, and commands may do without
	}
	more := map[string]string{}
	fields := strings.Split(string(b), "\x00")
	for i := 0; i+1 < len(fields); i += 2 {
		name, value := fields[i], fields[i+1]
		if usable(name, value) && !e.Has(name) {
			more[name] = value
		}
	}
	return e.With(more)
}

// ReadFile reads a file of at most [Max] bytes.
func ReadFile(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may be a pipe
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, Max+1))
	if err == nil && len(b) > Max {
		err = fmt.Errorf("it has more than %d MiB", Max>>20)
	}
	return b, err
}

// metadata is the document of a reload.
type metadata struct {
	Generation  int64          `json:"generation"`
	Environment map[string]any `json:"environment"`
}

// Reloaded is what a reload did.
type Reloaded struct {
	Generation int64 `json:"generation"`
	Applied    int   `json:"applied"` // variables
	Removed    int   `json:"removed"`
	// Skipped are names that nothing can be passed on by, or whose value is no text.
	Skipped []string `json:"skipped,omitempty"`
}

// Reload makes the variables of the document those of new processes.
func (v *Variables) Reload(*http.Request, string) (out Reloaded, err error) {
	name := v.Given().Get(metadataEnv)
	if name == "" {
		name = metadataFile
	}
	b, err := ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return out, doze.Wrap(err, doze.NotFound, "there is no %s", name)
	}
	if err != nil {
		return out, doze.Wrap(err, doze.Internal, "read %s: %v", name, err)
	}
	doc, err := body.Parse[metadata](b)
	if err != nil {
		return out, doze.Wrap(err, doze.Internal, "%s cannot be used: %s", name, doze.Public(err).Message)
	}
	over, skipped := doc.variables()
	out.Generation, out.Skipped = doc.Generation, skipped
	out.Applied, out.Removed = v.overlay(over)
	return out, nil
}

// variables returns those of a document, and the names of what is none: it does
// not cost the others.
func (doc metadata) variables() (over map[string]string, skipped []string) {
	over = map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(doc.Environment)) {
		value, ok := doc.Environment[name].(string)
		switch {
		case ok && usable(name, value):
			over[name] = value
		case len(skipped) < mistake.Max:
			skipped = append(skipped, mistake.Clip(name))
		}
	}
	return over, skipped
}
