package doctor

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// TestCompared: the text says by how much, or what a platform lacks.
func TestCompared(t *testing.T) {
	t.Parallel()
	used := Platform{Name: "used", Took: 4 * time.Microsecond}
	lacks := Platform{Name: "other", Err: errors.New("no device")}
	for want, all := range map[string][]Platform{
		"a system call takes 4µs with used; 1µs with other, 4.0 times as fast":             {used, {Name: "other", Took: time.Microsecond}},
		"a system call takes 4µs with used; 8µs with other, 0.5 times as fast":             {used, {Name: "other", Took: 8 * time.Microsecond}},
		"a system call takes 4µs with used; other does not work here: no device":           {used, lacks},
		"other does not work here: no device; a system call takes 4µs with used":           {lacks, used},
		"other does not work here: no device; other does not work here: no device":         {lacks, lacks},
		"a system call takes 4µs with used; other does not work here: no device; 4µs with": {used, lacks, {Name: "third", Took: 4 * time.Microsecond}},
	} {
		if got := compared(all); !strings.HasPrefix(got, want) {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
}

// TestKVM: platforms are measured where there is KVM, if somebody can. No host needs it.
func TestKVM(t *testing.T) {
	t.Parallel()
	measured := false
	h := Host{Measure: func() []Platform { measured = true; return nil }}
	_, err := os.Stat(kvmDevice)
	if verdict, text, _ := kvm(h); verdict != Fine || text == "" || measured != (err == nil) {
		t.Errorf("%v, %q; measured: %v; the device: %v", verdict, text, measured, err)
	}
	if verdict, text, _ := kvm(Host{}); verdict != Fine || !strings.Contains(text, "not needed") {
		t.Errorf("%v, %q", verdict, text)
	}
}
