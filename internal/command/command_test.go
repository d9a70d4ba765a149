package command_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/command"
)

func TestRun(t *testing.T) {
	t.Parallel()
	errOwn := errors.New("its own")
	for args, want := range map[string]struct {
		ran string // the arguments that the command got; - is none
		err string
	}{
		"":           {"-", "which command?"},
		"help":       {"-", ""},
		"--help":     {"-", ""},
		"fly":        {"-", `there is no command "fly"`},
		"new a --b":  {"a --b", ""},
		"old a":      {"a", ""},
		"fail":       {"", "its own"},
		"new --help": {"--help", ""},
	} {
		ran := "-"
		p := command.Program{Name: "test", Commands: []command.Command{
			{Name: "fail", Run: func(context.Context, []string) error { ran = ""; return errOwn }},
			{Name: "new", Old: "old", Run: func(_ context.Context, args []string) error {
				ran = strings.Join(args, " ")
				if slices.Contains(args, "--help") {
					return flag.ErrHelp
				}
				return nil
			}},
		}}
		err := p.Run(t.Context(), strings.Fields(args))
		if ran != want.ran || (err == nil) != (want.err == "") || err != nil && err.Error() != want.err {
			t.Errorf("%q: ran %q, %v", args, ran, err)
		}
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	p := command.Program{Name: "test", Intro: "It tests.", Outro: "The end.", Commands: []command.Command{
		{Name: "new", Old: "former", Args: "make|ls", Text: "make things"},
	}}
	var usage, help bytes.Buffer
	p.Usage(&usage)
	if want := "It tests.\n\nUsage:\n  test new      make|ls\n      make things\n\nThe end.\n"; usage.String() != want {
		t.Errorf("%s, want %s", &usage, want)
	}
	flags := p.Flags("new make")
	flags.Int("n", 2, "how `many`")
	flags.Bool("dry", false, "make none")
	p.Help(&help, flags)
	if want := "test new make|ls\n    make things\n\n  --dry\n      make none\n  --n many\n      how many (default 2)\n"; help.String() != want {
		t.Errorf("%s, want %s", &help, want)
	}
}
