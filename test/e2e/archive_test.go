package e2e_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// mess changes the files of a sandbox in every way, and listing shows what is
// there afterwards. Times are to the second.
const (
	mess = `set -e
mkdir -p /data/deep/er /data/empty && cd /data
head -c 3000000 /dev/urandom >big && echo text >deep/er/file
printf 'x' >owned && chown 1234:5678 owned && chmod 4751 owned && touch -d @1000000000 owned
ln -s ../nowhere link && ln deep/er/file same && mkfifo pipe && chmod 620 pipe
chmod 1777 empty && touch -d @1100000000 empty
rm -rf /etc/apt && rm /etc/issue
rm -rf /usr/share/doc && mkdir /usr/share/doc && echo mine >/usr/share/doc/readme
rm -rf /opt && echo file >/opt
chmod 700 /srv && echo more >>/etc/services`
	listing = `cd / && find data usr/share/doc opt srv etc \( -type d -printf '%p %y %m %U:%G\n' \) -o -printf '%p %y %m %U:%G %n %l %s\n' | sort
find data usr/share/doc opt etc -type f | sort | xargs md5sum; stat -c '%n %Y' data/owned data/empty; ls -d etc/apt etc/issue 2>&1 | wc -l; stat -c %a /tmp`
)

// status waits until the sandbox "box" has a status, and fails if it has one that is
// none of those on the way.
func status(t *testing.T, c *client.Client, want string, path ...string) doze.Sandbox {
	t.Helper()
	var sb doze.Sandbox
	until(t, "it is "+want, func() bool {
		var err error
		if sb, err = c.Sandbox(t.Context(), "box"); err != nil {
			t.Fatal(err)
		}
		if sb.Status != want && !slices.Contains(path, sb.Status) {
			t.Fatalf("it is %s on the way to %s: %+v", sb.Status, want, sb.Events)
		}
		return sb.Status == want
	})
	return sb
}

// pack archives the sandbox "box".
func pack(t *testing.T, c *client.Client) doze.Sandbox {
	t.Helper()
	if sb, err := c.Archive(t.Context(), "box"); err != nil || sb.Status != "ARCHIVING" {
		t.Fatalf("archive: %s, %v", sb.Status, err)
	}
	return status(t, c, "ARCHIVED", "ARCHIVING")
}

func unpack(t *testing.T, c *client.Client) doze.Sandbox {
	t.Helper()
	if sb, err := c.Unarchive(t.Context(), "box"); err != nil || sb.Status != "UNARCHIVING" {
		t.Fatalf("unarchive: %s, %v", sb.Status, err)
	}
	return status(t, c, "DEPLOYED", "UNARCHIVING")
}

// server starts a process that says what it was started with.
func server(t *testing.T, agent *client.Agent) {
	t.Helper()
	put(t, agent, "/srv/server.py", `
import http.server, os
class H(http.server.BaseHTTPRequestHandler):
    def log_message(self, *a): pass
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(" ".join([os.getcwd(), os.environ["OWN"], os.environ["PLAIN"]]).encode())
http.server.ThreadingHTTPServer(("0.0.0.0", 9000), H).serve_forever()
`)
	spawn(t, agent, client.Command{Name: "server", Command: "python3 /srv/server.py", WorkingDir: "/usr", Env: map[string]string{"OWN": "own"}})
}

// served waits for the answer of a server that was started as it was.
func served(t *testing.T, p *testkit.Platform, sb doze.Sandbox) {
	t.Helper()
	until(t, "the server answers", func() bool {
		code, body := get(t, p, sb.Metadata.URL+"/port/9000")
		return code == 200 && body == "/usr own plain"
	})
}

func TestArchive(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "1s", "--save-after", "100ms", "--disk-after", "1s")
	want := named("box", 512)
	want.Spec.Runtime.Envs = []doze.Env{{Name: "PLAIN", Value: new("plain")}}
	sb, agent := create(t, c, want)
	sh(t, agent, mess)
	server(t, agent)
	served(t, p, sb)
	sh(t, agent, "echo gone >/tmp/file")
	before := sh(t, agent, listing)

	awaitTier(t, p, "box", "disk") // it is woken for the archive
	sb = pack(t, c)
	if a := sb.Archive; a == nil || a.Size < 3_000_000 || a.CreatedAt.IsZero() {
		t.Errorf("its archive is %+v", a)
	}
	uid, err := p.UID("box")
	if err != nil {
		t.Fatal(err)
	}
	if leaks := strings.Join(p.Leaks(), "\n"); leaks != "file sandboxes/"+uid {
		t.Errorf("it costs more than disk:\n%s", leaks)
	}
	if image, err := filepath.Glob(filepath.Join(p.Data, "sandboxes", uid, "*")); err != nil || len(image) != 3 {
		t.Errorf("on disk it is %q, %v", image, err)
	}
	var said refusal
	a := call{url: sb.Metadata.URL + "/process"}.want(t, p, 409)
	if a.into(t, &said); said.Error.Code != doze.NameArchived || said.Error.Retryable || !strings.Contains(said.Error.Message, "unarchive") {
		t.Error(a.body)
	}
	if _, err := c.Archive(t.Context(), "box"); kind(err) != doze.Conflict {
		t.Errorf("archived twice: %v", err)
	}
	if err := p.Reboot(); err != nil {
		t.Fatal(err)
	}
	revive(t, p)
	status(t, c, "ARCHIVED")

	sb = unpack(t, c)
	if a := sb.Archive; a == nil || a.Restore == nil || a.Restore.State != doze.RestoreSucceeded {
		t.Errorf("its archive is %+v", a)
	}
	served(t, p, sb)
	if after := sh(t, agent, listing); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if got := sh(t, agent, "ls /tmp/file 2>/dev/null | wc -l"); got != "0" {
		t.Error("/tmp came back")
	}
	if files, err := filepath.Glob(filepath.Join(p.Data, "sandboxes", uid, "files*")); err != nil || len(files) != 0 {
		t.Errorf("the archive is still there: %q, %v", files, err)
	}
	// It is a sandbox like any other now, and the next archive has all of it.
	awaitTier(t, p, "box", "disk")
	served(t, p, sb)
	sh(t, agent, "echo more >/data/more && rm /data/big")
	pack(t, c)
	sb = unpack(t, c)
	served(t, p, sb)
	if got := sh(t, agent, "cat /data/more /usr/share/doc/readme; ls /data/big /etc/apt 2>/dev/null | wc -l"); got != "more\nmine\n0" {
		t.Errorf("the second archive gives %q", got)
	}
	pack(t, c)
	if _, err := c.Delete(t.Context(), "box"); err != nil {
		t.Error(err)
	}
}

// TestDaemonDiesOverArchives ends dozed at moments in which a sandbox is
// neither here nor there.
func TestDaemonDiesOverArchives(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "60s")
	want := named("box", 512)
	want.Spec.Runtime.Envs = []doze.Env{{Name: "PLAIN", Value: new("plain")}}
	sb, agent := create(t, c, want)
	sh(t, agent, mess)
	server(t, agent)
	served(t, p, sb)
	before := sh(t, agent, listing)
	for i, wait := range []time.Duration{0, 50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond} {
		end := p.Kill
		if i%2 == 1 {
			end = p.Stop
		}
		if _, err := c.Archive(t.Context(), "box"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(wait)
		if err := end(); err != nil {
			t.Fatal(err)
		}
		revive(t, p)
		status(t, c, "ARCHIVED", "ARCHIVING")
		if _, err := c.Unarchive(t.Context(), "box"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(wait)
		if err := end(); err != nil {
			t.Fatal(err)
		}
		revive(t, p)
		sb := status(t, c, "DEPLOYED", "UNARCHIVING")
		served(t, p, sb)
		if after := sh(t, agent, listing); after != before {
			t.Fatalf("ended after %v: before:\n%s\nafter:\n%s", wait, before, after)
		}
	}
}

// TestArchiveEndsDaemons: what left its session is asked to end as well, and
// ended if it does not, before its files are taken.
func TestArchiveEndsDaemons(t *testing.T) {
	t.Parallel()
	_, c := start(t, "--pause-after", "60s")
	_, agent := create(t, c, named("box", 512))
	sh(t, agent, `setsid sh -c 'trap "sleep 0.5; echo asked >/root/asked; exit" TERM; touch /root/up; while :; do sleep 0.01; done' >/dev/null 2>&1 &
until [ -e /root/up ]; do sleep 0.01; done`)
	// It has the output of the process that started it, and its file grows.
	spawn(t, agent, client.Command{Name: "parent", Command: `setsid sh -c 'trap "" TERM; while :; do echo more >>/root/grows; done' & sleep 1000`})
	until(t, "the file grows", func() bool { return sh(t, agent, "wc -l </root/grows || true") != "" })
	pack(t, c)
	unpack(t, c)
	if got := sh(t, agent, "cat /root/asked"); got != "asked" {
		t.Errorf("the daemon said %q", got)
	}
}
