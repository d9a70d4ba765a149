package daemon_test

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/daemon"
)

func TestInheritsNothing(t *testing.T) {
	own := strconv.Itoa(os.Getpid())
	for name, tt := range map[string]struct {
		pid, fds string
		fails    bool
	}{
		"nothing":       {},
		"for our child": {pid: "1", fds: "1"},
		"two":           {pid: own, fds: "2", fails: true},
		"none":          {pid: own, fds: "0", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("LISTEN_PID", tt.pid)
			t.Setenv("LISTEN_FDS", tt.fds)
			f, err := daemon.Inherited()
			if f != nil || (err != nil) != tt.fails {
				t.Errorf("got %v, %v", f, err)
			}
		})
	}
}

// TestInherits starts this test again, as systemd does a service.
func TestInherits(t *testing.T) {
	t.Parallel()
	const says = "the socket is at "
	if f, err := daemon.Inherited(); f != nil || err != nil {
		l, err2 := net.FileListener(f)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		t.Log(says + l.Addr().String())
		return
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// A process knows its number only when it runs.
	again := exec.CommandContext(t.Context(), "sh", "-c", `LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" -test.v -test.run "^TestInherits$"`, os.Args[0])
	again.ExtraFiles = []*os.File{f}
	out, err := again.CombinedOutput()
	if err != nil || !strings.Contains(string(out), says+l.Addr().String()) {
		t.Errorf("%v: %s", err, out)
	}
}
