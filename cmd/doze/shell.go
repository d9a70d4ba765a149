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

	"github.com/dozehq/doze/client"
)

// resizePoll is how often the size of the screen is looked at. Not every
// system tells when it changes.
const resizePoll = 250 * time.Millisecond

func (a *app) shell() *cobra.Command {
	var s client.Screen
	cmd := &cobra.Command{
		Use: "shell NAME", Short: "Open a terminal in a sandbox", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, ok := a.in.(*os.File)
			if !ok || !term.IsTerminal(int(in.Fd())) {
				return errors.New("standard input is not a terminal: use doze sandbox exec")
			}
			screen := func() (cols, rows int) {
				cols, rows, _ = term.GetSize(int(in.Fd())) // 0 means the size is not known
				return cols, rows
			}
			s.Cols, s.Rows = screen()
			if s.Session == "" {
				s.Session = rand.Text()
			}
			agent, err := a.enter(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			t, err := agent.Terminal(cmd.Context(), s)
			if err != nil {
				return err
			}
			defer t.Close()
			state, err := term.MakeRaw(int(in.Fd()))
			if err != nil {
				return err
			}
			defer func() { _ = term.Restore(int(in.Fd()), state) }()
			return attach(cmd.Context(), t, a.in, a.out, screen)
		},
	}
	cmd.Flags().StringVar(&s.Session, "session", "", "name of the `session`; terminals with the same name share a shell")
	cmd.Flags().StringVar(&s.Shell, "shell", "", "`shell` to run")
	cmd.Flags().StringVarP(&s.WorkingDir, "workdir", "w", "", "working `directory`")
	return cmd
}

// attach connects a terminal with a screen until the shell ends.
func attach(ctx context.Context, t *client.Terminal, in io.Reader, out io.Writer, screen func() (cols, rows int)) error {
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	tasks.Go(func() { resize(ctx, t, screen) })
	// No system lets a read of the keyboard be called off. The one who reads
	// ends with the process; we do not wait for it.
	go keys(ctx, t, in)
	for {
		data, err := t.Read(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := copyOut(out, data); err != nil {
			return err
		}
	}
}

func keys(ctx context.Context, t *client.Terminal, in io.Reader) {
	buf := make([]byte, 4096)
	for {
		n, err := in.Read(buf)
		if n > 0 && t.Write(ctx, buf[:n]) != nil || err != nil {
			return // attach sees why
		}
	}
}

func resize(ctx context.Context, t *client.Terminal, screen func() (cols, rows int)) {
	ticker := time.NewTicker(resizePoll)
	defer ticker.Stop()
	cols, rows := screen()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		c, r := screen()
		if c == cols && r == rows || c == 0 || r == 0 {
			continue
		}
		if cols, rows = c, r; t.Resize(ctx, c, r) != nil {
			return // attach sees why
		}
	}
}
