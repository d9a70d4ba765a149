package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/dozehq/doze/internal/machine/gvisor"
	"github.com/dozehq/doze/internal/trace"
)

// requestMax bounds what we decode. A request carries one machine's
// environment, which the API limits to far less.
const requestMax = 4 << 20

// headerTime bounds how long a caller may take to say what it wants.
const headerTime = 10 * time.Second

// Serve answers on a unix socket until ctx ends. The machines live on.
func (l *Launcher) Serve(ctx context.Context, socket string) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the old socket: %w", err)
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return errors.Join(fmt.Errorf("protect the socket: %w", err), listener.Close())
	}
	watching, end := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer end()
	watch.Go(func() { l.ceiling.Run(watching) })
	server := &http.Server{Handler: l.handler(), ReadHeaderTimeout: headerTime}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

func (l *Launcher) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+gvisor.PathVersion, func(w http.ResponseWriter, _ *http.Request) { answer(w, l.Version(), nil) })
	mux.HandleFunc("GET "+gvisor.PathMachines, func(w http.ResponseWriter, r *http.Request) {
		answer(w, l.Machines(r.URL.Query().Get(gvisor.QueryID)), nil)
	})
	mux.HandleFunc("GET "+gvisor.PathEvents, l.stream)
	timed(mux, gvisor.PathBoot, func(ctx context.Context, b gvisor.Boot) error { return l.Boot(ctx, b.Config) })
	timed(mux, gvisor.PathPrepare, func(ctx context.Context, b gvisor.Boot) error { return l.Prepare(ctx, b.Config) })
	timed(mux, gvisor.PathRestore, l.Restore)
	timed(mux, gvisor.PathResume, l.Resume)
	post(mux, gvisor.PathLimit, l.Limit)
	post(mux, gvisor.PathArchive, l.Archive)
	post(mux, gvisor.PathRename, l.Rename)
	post(mux, gvisor.PathAdminister, l.Administer)
	for path, do := range map[string]func(context.Context, string) error{
		gvisor.PathPause: l.Pause, gvisor.PathWatch: l.Watch, gvisor.PathLoaded: l.Loaded, gvisor.PathKill: l.Kill,
	} {
		post(mux, path, func(ctx context.Context, t gvisor.Target) error { return do(ctx, t.ID) })
	}
	ask(mux, gvisor.PathCheckpoint, l.Checkpoint)
	ask(mux, gvisor.PathFinish, l.Finish)
	ask(mux, gvisor.PathPrecopy, l.Precopy)
	ask(mux, gvisor.PathStats, func(ctx context.Context, t gvisor.Target) (gvisor.Stats, error) { return l.Stats(ctx, t.ID) })
	ask(mux, gvisor.PathReclaim, func(ctx context.Context, t gvisor.Target) (gvisor.Reclaimed, error) { return l.Reclaim(ctx, t.ID) })
	return mux
}

// ask serves a call that has a result. It ends early if the caller leaves, or
// closes its half of the connection and waits for the answer.
func ask[In, Out any](mux *http.ServeMux, path string, do func(ctx context.Context, in In) (Out, error)) {
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		in, err := decode[In](w, r)
		var out Out
		if err == nil {
			out, err = do(r.Context(), in)
		}
		answer(w, out, err)
	})
}

// post serves a call that has no result. It goes on to its end if the caller
// leaves: half of a boot or of a kill helps nobody.
func post[In any](mux *http.ServeMux, path string, do func(context.Context, In) error) {
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		in, err := decode[In](w, r)
		if err == nil {
			err = do(context.WithoutCancel(r.Context()), in)
		}
		answer(w, struct{}{}, err)
	})
}

// timed is post, and its result is how long the stages of the call took.
func timed[In any](mux *http.ServeMux, path string, do func(context.Context, In) error) {
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		t := trace.Begin(trace.Wake, nil, "", "", time.Now(), nil)
		in, err := decode[In](w, r)
		if err == nil {
			err = do(trace.With(context.WithoutCancel(r.Context()), t), in)
		}
		answer(w, t.Parts(), err)
	})
}

func decode[In any](w http.ResponseWriter, r *http.Request) (in In, err error) {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, requestMax)).Decode(&in); err != nil {
		return in, fmt.Errorf("decode: %w", err)
	}
	return in, nil
}

func answer(w http.ResponseWriter, v any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		v = gvisor.Failure{Error: err.Error(), Gone: errors.Is(err, errGone), Taken: errors.Is(err, errTaken), Still: errors.Is(err, errStill), Late: errors.Is(err, errLate), Lost: errors.Is(err, errLost)}
	}
	_ = json.NewEncoder(w).Encode(v) // the caller went away: nobody is left to tell
}

// stream tells what happens, one JSON object per line.
func (l *Launcher) stream(w http.ResponseWriter, r *http.Request) {
	heard, stop := l.events.listen()
	defer stop()
	out := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	if out.Flush() != nil {
		return
	}
	encoder := json.NewEncoder(w)
	for {
		select {
		case <-r.Context().Done():
			return
		case e, ok := <-heard:
			if !ok || encoder.Encode(e) != nil || out.Flush() != nil {
				return
			}
		}
	}
}
