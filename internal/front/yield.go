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
	// drainWait is how long new callers wait to see whether all requests under way
	// end. If one does not, it goes on, and the callers are let in.
	drainWait = time.Second
	// drainPause is the least time between two such attempts. Without it, callers
	// would wait most of the time where requests take about as long as drainWait.
	drainPause = 5 * time.Second
)

// Replace is the signal by which dozed ends for a successor, as soon as nobody
// is cut off by that. Callers who come after that wait for the successor.
const Replace = syscall.SIGUSR2

var errReplaced = errors.New("another dozed is about to be started")

// yield waits for the signal to make room for a successor. Then it waits until
// that cuts off nobody, until lingerTime is over, or until the next signal, while
// all requests are served as ever. It calls end, and returns at the end of ctx.
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

// calm returns when no request is under way and nobody is let in any more. When ctx
// ends before, it returns an error, and callers are let in.
func (f *Front) calm(ctx context.Context) error {
	for {
		if err := f.requests.wait(ctx, drainWait); err != nil {
			return err
		}
		if err := f.drain(ctx); !errors.Is(err, errBusy) {
			return err
		}
		select {
		case <-time.After(drainPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// errBusy is what drain returns if a request under way takes longer.
var errBusy = errors.New("a request takes longer")

// drain lets nobody in, and waits a moment for the requests under way to end. If
// they do, nobody is let in any more.
func (f *Front) drain(ctx context.Context) (err error) {
	f.requests.closing.Store(true)
	defer func() {
		if err != nil && f.linger == 0 { // an edge goes on to rid itself of connections
			f.requests.closing.Store(false)
		}
	}()
	pause(ctx, leaveWait)
	if f.linger > 0 {
		if err := f.rested(ctx, drainWait); err != nil {
			return err
		}
		// Callers were let in meanwhile.
		if err := f.requests.wait(ctx, drainWait); err != nil {
			return err
		}
	}
	if err := f.listeners.pause(); err != nil {
		return err
	}
	f.requests.shut.Store(true)
	defer func() {
		if err != nil {
			f.requests.shut.Store(false)
		}
	}()
	moment, cancel := context.WithTimeoutCause(ctx, drainWait, errBusy)
	defer cancel()
	if f.linger > 0 {
		if err = f.rested(moment, 0); err == nil {
			err = f.requests.wait(moment, 0)
		}
		if err != nil {
			err = errors.Join(err, f.listeners.resume())
		}
		return err
	}
	f.keepAlives(false)
	if err = f.requests.wait(moment, 0); err != nil {
		f.keepAlives(true)
		err = errors.Join(err, f.listeners.resume())
	}
	return err
}
