package settings

import (
	"flag"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/daemon"
)

// other changes a setting to another value.
func other(t *testing.T, field any) {
	t.Helper()
	switch to := field.(type) {
	case *string:
		*to += "-other"
	case *bool:
		*to = !*to
	case *int:
		*to += 7
	case *int64:
		*to += 7
	case *float64:
		*to += 0.125
	case *daemon.Duration:
		to.Duration += 7777
	case *[]string:
		*to = append(slices.Clone(*to), "other")
	default:
		t.Fatalf("nobody changes a %T", field)
	}
}

// TestReadersAreKnown: what changes the options of a part of the platform is a setting of
// the commands that have this part.
func TestReadersAreKnown(t *testing.T) {
	t.Parallel()
	parts := map[string]struct {
		of  func(Settings) any
		has reader
	}{
		"the host": {func(s Settings) any {
			o := s.Host()
			o.Resolver = nil // a function, which is never equal
			return o
		}, node},
		"the front":    {func(s Settings) any { return s.Front() }, edge},
		"the entrance": {func(s Settings) any { return s.Entrance() }, edge},
		"the bucket":   {func(s Settings) any { return s.Bucket() }, control},
		"images":       {func(s Settings) any { return s.Library() }, makesImages},
	}
	for i := range new(Settings).rows() {
		for name, part := range parts {
			was := Defaults()
			was.ACME, was.OnCrash = true, crashResume
			now := was
			r := now.rows()[i]
			if r.by == 0 {
				t.Errorf("nobody reads --%s", r.flag)
			}
			other(t, r.field)
			if !reflect.DeepEqual(part.of(was), part.of(now)) && r.by&part.has == 0 {
				t.Errorf("--%s changes %s, and the help of its command does not have it", r.flag, name)
			}
		}
	}
}

// TestOwn: the help of a command has the flags that it reads, and all that are no
// settings.
func TestOwn(t *testing.T) {
	t.Parallel()
	names := func(command string) (all []string) {
		flags := flag.NewFlagSet("dozed "+command, flag.ContinueOnError)
		s := Defaults()
		s.Bind(flags)
		flags.Bool("only-here", false, "a flag of this command")
		Own(flags).VisitAll(func(f *flag.Flag) {
			if f.DefValue != flags.Lookup(f.Name).DefValue {
				t.Errorf("the default of --%s is %q", f.Name, f.DefValue)
			}
			all = append(all, f.Name)
		})
		return all
	}
	for command, want := range map[string]struct{ has, lacks string }{
		"all":          {"data database listen pause-after", "control-listen node fleet-keys"},
		"control":      {"data database control-listen fleet-keys egress-pool", "pause-after tls-key node-listen"},
		"node":         {"data pause-after node-listen control fleet-keys", "database tls-cert control-listen source-rate"},
		"edge":         {"data listen tls-cert control source-rate", "database pause-after node-listen control-listen"},
		"certificates": {"data fleet-keys", "listen pause-after"},
		"image build":  {"data images-dir images", "listen pause-after"},
		"doctor":       {"data swap", "listen pause-after"},
		"destroy":      {"data run", "listen pause-after"},
		"config print": {"data listen pause-after control-listen node-listen", ""},
	} {
		got := names(command)
		for _, name := range append(strings.Fields(want.has), "only-here") {
			if !slices.Contains(got, name) {
				t.Errorf("dozed %s --help has no --%s", command, name)
			}
		}
		for name := range strings.FieldsSeq(want.lacks) {
			if slices.Contains(got, name) {
				t.Errorf("dozed %s --help has --%s", command, name)
			}
		}
	}
}
