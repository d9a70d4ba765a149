package front

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"syscall"
	"time"
)

const (
	// lingerTime is how long requests that are under way may keep a dozed from
	// ending for a successor: as long as most commands, builds and uploads take.
	// It is also how long an upgrade may take.
	lingerTime = 10 * time.Minute
	// lullTime is how long callers are let wait to see whether all that is under
	// way ends. What does not is let go on, and they are let in meanwhile.
	lullTime = time.Second
	// lullPause is the least time between two such attempts: where requests take
	// about as long as a lull, callers would else wait most of the time.
	lullPause = 5 * time.Second
)

// Replace is the signal by which dozed ends for a successor, as soon as nobody
// is cut off by that. Callers who come after that wait for the successor.
const Replace = syscall.SIGUSR2

var errReplaced = errors.New("another dozed is about to be started")

// yield waits for the signal to make room for a successor, and then until
// that cuts off nobody, until it lasts too long, or until the next signal. Until
// then all is served as ever. It calls end, and returns at the end of ctx.
func (f *Front) yield(ctx context.Context, signals <-chan os.Signal, end context.CancelCauseFunc) error {
	select {
	case <-signals:
	case <-ctx.Done():
		return nil
	}
	slog.Info("to be replaced as soon as no request is under way; another signal cuts them off", "requests", f.requests.old(0), "limit", lingerTime)
	patience, cancel := context.WithTimeout(ctx, lingerTime)
	defer cancel()
	go func() { // ends with patience
		select {
		case <-signals:
			cancel()
		case <-patience.Done():
		}
	}()
	if err := f.calm(patience); err != nil && ctx.Err() == nil {
		slog.Warn("requests are cut off", "requests", f.requests.old(0), "err", err)
	}
	end(errReplaced)
	<-ctx.Done()
	return nil
}

// calm returns when nothing is under way and nobody is let in any more, or with
// an error when ctx ends, and then with callers let in.
func (f *Front) calm(ctx context.Context) error {
	for {
		if err := f.requests.wait(ctx, lullTime); err != nil {
			return err
		}
		if err := f.lull(ctx); !errors.Is(err, errBusy) {
			return err
		}
		select {
		case <-time.After(lullPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// errBusy is what lull returns if something under way takes longer.
var errBusy = errors.New("a request takes longer")

// lull lets nobody in and waits a moment for what is under way to end. If that
// does, it stays so.
func (f *Front) lull(ctx context.Context) error {
	if err := f.listeners.pause(); err != nil {
		return err
	}
	f.keepAlives(false)
	moment, cancel := context.WithTimeoutCause(ctx, lullTime, errBusy)
	defer cancel()
	err := f.requests.wait(moment, 0)
	if err != nil {
		f.keepAlives(true)
		err = errors.Join(err, f.listeners.resume())
	}
	return err
}
