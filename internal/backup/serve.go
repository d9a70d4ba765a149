package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/instance"
)

const (
	// socketName is in the run directory, which only root may enter.
	socketName = "backup.sock"
	// Dir, in the data directory, has what is being copied for a backup. Nothing of it
	// outlasts the backup.
	Dir = instance.BackupDir

	sandboxesName = "sandboxes"
	volumesName   = "volumes"
	// headerTime bounds how long the other side may take to say what it wants.
	headerTime = 10 * time.Second
)

// Source is what has sandboxes and volumes, which only it can copy.
type Source interface {
	// Contents returns what there is.
	Contents(ctx context.Context) (host.Contents, error)
	// Backup makes a directory with a sandbox as it is now, and says what is missing of it.
	Backup(ctx context.Context, uid, dir string) (left string, err error)
	// BackupVolume copies a volume into a new file.
	BackupVolume(ctx context.Context, id, file string) error
}

// named is what stages, sandboxes and volumes are called. None of them is a path.
var named = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,127}$`)

// copied is what there is to say of a sandbox that was copied.
type copied struct {
	Left string `json:"left,omitempty"`
}

// Serve lets [Backup] copy sandboxes and volumes that are in use, until ctx ends. It
// listens on a unix socket in a run directory. Only root may enter that directory, so that
// there is no key.
func Serve(ctx context.Context, run, data string, source Source) error {
	name := filepath.Join(run, socketName)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) { // of the one before
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", name)
	if err != nil {
		return fmt.Errorf("listen for backups: %w", err)
	}
	if err := os.Chmod(name, 0o600); err != nil {
		return errors.Join(err, l.Close())
	}
	server := &http.Server{Handler: handler(data, source), ReadHeaderTimeout: headerTime, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // a backup that is under way fails
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve backups: %w", err)
	}
	return nil
}

func handler(data string, source Source) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /contents", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, func(ctx context.Context, _ string) (any, error) { return source.Contents(ctx) })
	})
	mux.HandleFunc("POST /{stage}/sandboxes/{name}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, func(ctx context.Context, name string) (any, error) {
			left, err := source.Backup(ctx, name, filepath.Join(data, Dir, r.PathValue("stage"), sandboxesName, name))
			return copied{left}, err
		})
	})
	mux.HandleFunc("POST /{stage}/volumes/{name}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, func(ctx context.Context, name string) (any, error) {
			return copied{}, source.BackupVolume(ctx, name, filepath.Join(data, Dir, r.PathValue("stage"), volumesName, name))
		})
	})
	return mux
}

// answer does what a request asks for. Its names are no paths.
func answer(w http.ResponseWriter, r *http.Request, do func(ctx context.Context, name string) (any, error)) {
	for _, key := range []string{"stage", "name"} {
		if v := r.PathValue(key); v != "" && !named.MatchString(v) {
			httpx.WriteError(w, r, doze.Errorf(doze.Invalid, "%.80q is no %s", v, key))
			return
		}
	}
	out, err := do(r.Context(), r.PathValue("name"))
	if err != nil {
		slog.WarnContext(r.Context(), "a part of a backup cannot be copied", "path", r.URL.Path, "err", err)
		httpx.WriteError(w, r, err)
		return
	}
	httpx.WriteJSON(w, http.StatusOK, out)
}

// caller asks the dozed that runs.
type caller struct{ http *http.Client }

func call(run string) caller {
	name := filepath.Join(run, socketName)
	return caller{&http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", name)
		},
	}}}
}

// do sends a request and reads the answer into out.
func (c caller) do(ctx context.Context, method string, out any, path ...string) error {
	u, err := url.JoinPath("http://dozed/", path...)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, u, nil)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return fmt.Errorf("ask dozed: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return httpx.ReadError(resp)
	}
	return readJSON(resp.Body, out)
}
