package settings

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/outproxy"
	"github.com/dozehq/doze/internal/store"
)

// environment is how the names of environment variables begin.
const environment = "DOZED"

// Load reads a file, then the environment, then the arguments of a command. The
// last one wins. It adds the settings to flags, which may have others. What is
// left of the arguments is in flags. For a call of help the error is
// [flag.ErrHelp]. Load writes a notice to the standard error for each old name.
func Load(flags *flag.FlagSet, args []string) (Settings, error) {
	return loadWith(flags, args, os.Stderr)
}

// loadWith is Load with another place for notices.
func loadWith(flags *flag.FlagSet, args []string, notices io.Writer) (Settings, error) {
	args = currentFlags(args, notices)
	told := func(old, now string) { notice(notices, old, now) }
	s := Defaults()
	s.Bind(flags)
	file := flags.String("config", "", "JSON `file` with settings (dozed config print shows all)")
	// The name of the file must be known before the others are read over it.
	first := again(flags)
	switch err := first.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return s, err
	case err != nil:
		return s, fmt.Errorf("%w; see %s --help", err, flags.Name())
	case outproxy.HasPassword(s.UpstreamProxy):
		return s, errors.New("every user of the host sees the password in --upstream-proxy: put the URL into a file for --upstream-proxy-file, or into DOZED_UPSTREAM_PROXY")
	case store.HasPassword(s.Database):
		return s, errors.New("every user of the host sees the password in --database: put the URL into a file for --database-file, or into DOZED_DATABASE")
	}
	if err := daemon.ReadEnvironment(environment, first, nil, nil); err != nil {
		return s, err
	}
	if *file != "" {
		if err := daemon.ReadConfig(*file, &s, oldKeys(), told); err != nil {
			return s, err
		}
	}
	if err := errors.Join(flags.Parse(args), daemon.ReadEnvironment(environment, flags, oldFlags(), told)); err != nil {
		return s, err
	}
	if err := errors.Join(s.readDatabase(), s.readProxy()); err != nil {
		return s, err
	}
	return s.resolve(), nil
}

// again returns flags of the same values, of which none was given yet.
func again(flags *flag.FlagSet) *flag.FlagSet {
	copied := flag.NewFlagSet(flags.Name(), flag.ContinueOnError)
	copied.SetOutput(flags.Output())
	flags.VisitAll(func(f *flag.Flag) { copied.Var(f.Value, f.Name, f.Usage) })
	return copied
}
