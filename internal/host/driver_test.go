package host

import (
	"path"
	"slices"
	"strings"
	"testing"
)

func TestDriverNamed(t *testing.T) {
	t.Parallel()
	if !slices.Contains(Drivers(), DriverDefault) {
		t.Errorf("the default %s is none of %v", DriverDefault, Drivers())
	}
	for _, name := range Drivers() {
		if open, err := driverNamed(name); open == nil || err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d := drivers[name]; d.traits.Name != name || d.traits.Overhead <= 0 || d.launcher == "" || !slices.Contains(d.processes, d.launcher) {
			t.Errorf("the row of %s is incomplete: %+v, %q, %q", name, d.traits, d.launcher, d.processes)
		}
		for _, pattern := range drivers[name].processes {
			if _, err := path.Match(pattern, ""); err != nil {
				t.Errorf("%s: the pattern %q: %v", name, pattern, err)
			}
		}
	}
	for _, name := range []string{"", "gVisor", "firecracker"} {
		_, err := driverNamed(name)
		if err == nil || !strings.Contains(err.Error(), "--driver must be "+strings.Join(Drivers(), " or ")) {
			t.Errorf("%q: %v, want an error that names those that there are", name, err)
		}
	}
}
