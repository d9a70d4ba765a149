package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

const (
	// watchEvery is how often a list that is watched is asked for.
	watchEvery = 2 * time.Second
	// clearScreen moves the cursor to the top and removes what is on the screen.
	clearScreen = "\x1b[H\x1b[2J"
)

// lists are the names of commands that print records, and can do so again and again.
var lists = map[string]bool{"ls": true, "ps": true, "get": true, "stats": true}

// watchable gives all lists at or below cmd a flag that repeats them.
func (a *app) watchable(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		a.watchable(sub)
	}
	if !lists[cmd.Name()] || cmd.RunE == nil || cmd.HasSubCommands() {
		return
	}
	var again bool
	cmd.Flags().BoolVar(&again, "watch", false, "print again every 2 seconds, until an interrupt")
	once := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !again {
			return once(cmd, args)
		}
		return a.repeat(cmd.Context(), func() error { return once(cmd, args) })
	}
}

// repeat prints what do prints, and once more when that is something else, until ctx ends
// or do fails. A terminal shows the last one alone. The end of ctx is no error.
func (a *app) repeat(ctx context.Context, do func() error) error {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	screen := a.out
	defer func() { a.out = screen }()
	for last := ""; ; {
		var out bytes.Buffer
		a.out = &out
		err := do()
		a.out = screen
		if ctx.Err() != nil {
			return nil // an interrupt is how it ends
		}
		if err != nil {
			return err
		}
		if text := out.String(); text != last {
			last = text
			if onScreen(screen) {
				text = clearScreen + text
			}
			if err := copyOut(screen, text); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// onScreen reports whether w is a terminal.
func onScreen(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
