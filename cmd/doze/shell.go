package main

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func (a *app) shell() *cobra.Command {
	var s client.Screen
	cmd := &cobra.Command{
		Use: "shell NAME", Short: "Open a terminal in a sandbox, and exit with the code of its shell", Args: takes(1, 1),
		Example: "  doze shell web\n  doze shell web --shell /bin/bash -w /app\n  doze shell web --session pair        # two people, one shell",
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.terminal() == nil {
				return errors.New("standard input is not a terminal: use doze exec")
			}
			agent, err := a.enter(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.interact(cmd.Context(), true, s, func(ctx context.Context, s client.Screen) (*client.Terminal, error) {
				if s.Session != "" {
					return agent.Terminal(ctx, s)
				}
				s.Session = rand.Text()
				t, err := agent.RunTerminal(ctx, s)
				if doze.Public(err).Kind == doze.Unsupported { // its end has no code, then
					return agent.Terminal(ctx, s)
				}
				return t, err
			})
		},
	}
	cmd.Flags().StringVar(&s.Session, "session", "", "name of the `session`; terminals with the same name share a shell")
	cmd.Flags().StringVar(&s.Shell, "shell", "", "`shell` to run")
	cmd.Flags().StringVarP(&s.WorkingDir, "workdir", "w", "", "working `directory`")
	return cmd
}

// terminal is standard input, if that is a terminal.
func (a *app) terminal() *os.File {
	if f, ok := a.in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// interact connects the terminal of the user with one in a sandbox, until that ends. The
// error is an exitError if it did not end well. If nothing is typed, or the user has no
// terminal, the other one is only shown.
func (a *app) interact(ctx context.Context, typed bool, s client.Screen, open func(context.Context, client.Screen) (*client.Terminal, error)) error {
	v := view{out: a.out, screen: func() (cols, rows int) { return 0, 0 }}
	in := a.terminal()
	if in != nil {
		v.screen = func() (cols, rows int) {
			cols, rows, _ = term.GetSize(int(in.Fd())) // 0 means the size is not known
			return cols, rows
		}
	}
	s.Cols, s.Rows = v.screen()
	t, err := open(ctx, s)
	if err != nil {
		return err
	}
	defer t.Close()
	if in != nil && typed {
		v.in = in
		state, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return err
		}
		defer func() { _ = term.Restore(int(in.Fd()), state) }()
	}
	if err := v.attach(ctx, t); err != nil {
		return err
	}
	if e := t.Exit(); e != nil {
		return a.exitOf(e.Code, e.Signal)
	}
	return nil
}

// A view is what shows a terminal in a sandbox to a user.
type view struct {
	in     io.Reader // what is typed; nil: nothing
	out    io.Writer
	screen func() (cols, rows int)
}

// attach connects a terminal with the user until its command ends. At the end of ctx,
// the command is asked to end, and gets some time for it.
func (v view) attach(ctx context.Context, t *client.Terminal) error {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	tasks.Go(func() { v.resize(life, t) })
	tasks.Go(func() { giveUp(ctx, life, t, cancel) })
	if v.in != nil {
		// No system lets a read of the keyboard be called off. The one who reads
		// ends with the process; we do not wait for it.
		go v.keys(life, t)
	}
	for {
		data, err := t.Read(life)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		if err := copyOut(v.out, data); err != nil {
			return err
		}
	}
}

// giveUp ends the command at the end of ctx, and the view if that takes long. Shells for
// people ignore SIGTERM, and end with their terminal.
func giveUp(ctx, life context.Context, t *client.Terminal, end context.CancelFunc) {
	defer end()
	select {
	case <-life.Done():
		return
	case <-ctx.Done():
	}
	for _, name := range []string{"TERM", "HUP"} {
		if t.Signal(life, name) != nil {
			return // attach sees why
		}
		select {
		case <-life.Done():
			return
		case <-time.After(stopTimeout / 2): //nolint:mnd // one half for each
		}
	}
}

func (v view) keys(ctx context.Context, t *client.Terminal) {
	buf := make([]byte, 4096)
	for {
		n, err := v.in.Read(buf)
		if n > 0 && t.Write(ctx, buf[:n]) != nil || err != nil {
			return // attach sees why
		}
	}
}

// resize tells the size of the screen whenever it changes.
func (v view) resize(ctx context.Context, t *client.Terminal) {
	changed, stop := screenChanges()
	defer stop()
	cols, rows := v.screen()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		c, r := v.screen()
		if c == cols && r == rows || c == 0 || r == 0 {
			continue
		}
		if cols, rows = c, r; t.Resize(ctx, c, r) != nil {
			return // attach sees why
		}
	}
}
