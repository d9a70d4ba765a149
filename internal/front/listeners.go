package front

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/dozehq/doze/internal/handover"
)

// Sockets of the processes that keep the addresses, in the run directory.
const (
	apiSocket      = "door.sock"
	previewsSocket = "previews.sock"
)

// Entrance says where callers come in.
type Entrance struct {
	Listen   string   // address of the API and the edge
	Previews string   // address of previews by path; empty where previews have hosts of their own
	Run      string   // the run directory
	Program  string   // path of dozed itself: it becomes the process that keeps an address
	Given    *os.File // a listening socket for Listen that another process keeps; may be nil
}

// Listeners are the sockets by which callers come in.
type Listeners struct {
	api      *handover.Listener
	previews *handover.Listener // nil where previews have hosts of their own
}

// Listen takes the addresses for this process alone. It makes no directory.
func Listen(ctx context.Context, e Entrance) (*Listeners, error) {
	api, err := handover.Open(ctx, handover.Options{Address: e.Listen, Path: filepath.Join(e.Run, apiSocket), Program: e.Program, Inherited: e.Given})
	if err != nil {
		return nil, fmt.Errorf("choose another address with --listen: %w", err)
	}
	l := &Listeners{api: api}
	if e.Previews == "" {
		return l, nil
	}
	l.previews, err = handover.Open(ctx, handover.Options{Address: e.Previews, Path: filepath.Join(e.Run, previewsSocket), Program: e.Program})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("choose another address for previews with --preview-listen: %w", err), l.api.Close())
	}
	return l, nil
}

// Address is where the API and the edge listen.
func (l *Listeners) Address() string { return l.api.Addr().String() }

// Hold makes sure that another process keeps the addresses while dozed is away.
// Preconditions: nobody else serves the run directory.
func (l *Listeners) Hold(ctx context.Context) error {
	return l.each(func(d *handover.Listener) error { return d.Hold(ctx) })
}

// Shut ends the processes that keep the addresses: after Close, callers are
// refused.
func (l *Listeners) Shut() error { return l.all((*handover.Listener).Shut) }

// Close closes our copies of the sockets. Callers wait for the next dozed.
func (l *Listeners) Close() error { return l.all((*handover.Listener).Close) }

// pause lets callers wait, and lets them all in again if one listener cannot.
func (l *Listeners) pause() error {
	err := l.each((*handover.Listener).Pause)
	if err != nil {
		err = errors.Join(err, l.resume())
	}
	return err
}

func (l *Listeners) resume() error { return l.all((*handover.Listener).Resume) }

// each calls do for each listener, until one has an error.
func (l *Listeners) each(do func(*handover.Listener) error) error {
	err := do(l.api)
	if err == nil && l.previews != nil {
		err = do(l.previews)
	}
	return err
}

// all calls do for each listener, whatever comes of it.
func (l *Listeners) all(do func(*handover.Listener) error) error {
	err := do(l.api)
	if l.previews != nil {
		err = errors.Join(err, do(l.previews))
	}
	return err
}
