package main

import (
	"bytes"
	"context"
	"database/sql"
	_ "embed" // for what makes a machine
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/authority"
	"github.com/dozehq/doze/internal/testkit/postgres"
)

// What docs/operations.md says of hosts that do not exist is so here: the names, the addresses
// and the passwords are those of the page.
const (
	fleetPage     = "docs/operations.md"
	fleetSection  = "### Begin a fleet"
	pageDatabase  = "PASSWORD"
	pageAccess    = "ACCESS_KEY"
	pageSecret    = "SECRET_KEY"
	pageBucket    = "checkpoints"
	pageToken     = "TOKEN"
	pageJoins     = "10.0.0.11" // the address of the host in the command that joins
	firstSandbox  = "first"
	strangerTime  = 5 * time.Minute // for all that the page says, on a busy host
	bucketAddress = "10.0.0.30"
)

// strangers are the hosts of the page, and those that it takes for granted.
var strangers = map[string]string{"one": "10.0.0.10", "two": pageJoins, "three": "10.0.0.12", recordsHost: "10.0.0.20", bucketHost: bucketAddress}

//go:embed machine.sh
var machineScript string

// A machine is one that a stranger has just installed.
type machine struct {
	t             *testing.T
	name, network string
	dir           string
}

// bootMachine boots a machine. It and all its processes end with the test.
func bootMachine(t *testing.T, w *wire, name string, files map[string]string) *machine {
	t.Helper()
	m := &machine{t: t, name: fmt.Sprintf("doze-stranger-%d-%s", w.slot, name), network: "/run/netns/" + w.prefix() + name, dir: filepath.Join(t.TempDir(), name)}
	if err := os.Mkdir(m.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(m.dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	boot := m.command(context.WithoutCancel(t.Context()), "boot", testkit.Images)
	boot.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // also if this process is killed
	log, err := os.Create(filepath.Join(m.dir, "boot.log"))
	if err != nil {
		t.Fatal(err)
	}
	boot.Stdout, boot.Stderr = log, log
	begun, ended := make(chan error, 1), make(chan struct{})
	go func() { // ends with the machine
		defer close(ended)
		runtime.LockOSThread() // the signal comes when the thread ends
		err := boot.Start()
		if begun <- err; err == nil {
			_ = boot.Wait()
		}
	}()
	if err := <-begun; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s: %s", name, m.log())
		}
		_ = boot.Process.Kill() // all processes of the machine go with its first one
		<-ended
		if err := until(context.WithoutCancel(t.Context()), stopTime, m.removeGroups); err != nil {
			t.Error(err)
		}
		_ = log.Close()
	})
	err = until(t.Context(), readyTime, func() error {
		select {
		case <-ended:
			said, _ := os.ReadFile(log.Name())
			t.Fatalf("the machine %s ended: %s", name, said)
		default:
		}
		if text, err := os.ReadFile(filepath.Join(m.dir, "ready")); err != nil || len(text) == 0 {
			return fmt.Errorf("the machine %s is not ready", name)
		}
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", boot.Process.Pid))
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(m.dir, "pid"), bytes.TrimSpace(children), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *machine) command(ctx context.Context, what, last string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-c", machineScript, "machine.sh", what, m.name, m.network, m.dir, last)
	cmd.Env = append(os.Environ(), "PROGRAMS="+filepath.Join(testkit.Root(), "bin"))
	return cmd
}

// removeGroups removes the control groups of a machine. They are empty soon after its end.
func (m *machine) removeGroups() error {
	_ = exec.Command("find", "/sys/fs/cgroup", "-depth", "-type", "d", "-path", "*/"+m.name+"*", "-exec", "rmdir", "{}", "+").Run() // then there are some, see below
	left, err := exec.Command("find", "/sys/fs/cgroup", "-type", "d", "-name", m.name).Output()
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("control groups are left: %s", left)
	}
	return err
}

// log is what the commands of a machine printed.
func (m *machine) log() string {
	raw, _ := os.ReadFile(filepath.Join(m.dir, "log")) // there may be none yet
	return string(raw)
}

// run runs commands as a stranger does, in one shell, and returns what they print. What they
// start in the background goes on.
func (m *machine) run(ctx context.Context, lines string) string {
	m.t.Helper()
	log, err := os.OpenFile(filepath.Join(m.dir, "log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = log.Close() }() // the processes have it
	before := len(m.log())
	cmd := m.command(ctx, "enter", lines)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		m.t.Fatalf("%s: %v", lines, err)
	}
	return m.log()[before:]
}

// pageSteps are the commands in the section of the page, in order: of each host, of the first
// one, of the others, of the first one again.
func pageSteps(t *testing.T) (each, first, others, use string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(testkit.Root(), fleetPage))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(raw), "\n"+fleetSection+"\n")
	section, _, _ = strings.Cut(section, "\n### ")
	steps := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)\n(On [^,\n]*),[^\n]*\n\n```sh\n(.*?)```\n").FindAllStringSubmatch(section, -1) {
		steps[m[1]] += m[2] + "\000"
	}
	one, two, ok := strings.Cut(strings.TrimSuffix(steps["On the first host"], "\000"), "\000")
	each, others = strings.TrimSuffix(steps["On each host"], "\000"), strings.TrimSuffix(steps["On each other host"], "\000")
	if !ok || each == "" || others == "" || len(steps) != 3 {
		t.Fatalf("%s of %s has the steps %q", fleetSection, fleetPage, steps)
	}
	return each, one, others, two
}

// TestStranger: three hosts that have just been installed are a fleet after the commands of the
// page, and nothing else.
func TestStranger(t *testing.T) {
	needsFleet(t)
	each, first, others, use := pageSteps(t)
	ctx, cancel := context.WithTimeout(t.Context(), strangerTime)
	defer cancel()
	w, err := openWire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	for name, address := range strangers {
		if err := w.plug(ctx, name, address); err != nil {
			t.Fatal(err)
		}
	}
	cert, key, _ := authority.SelfSigned(t, "doze.example.com", "s3.example.com")
	grantBucket(t, w, cert, key)
	grantRecords(t, w)
	files := map[string]string{"hosts": "10.0.0.10 doze.example.com\n" + strangers[recordsHost] + " db.example.com\n" + bucketAddress + " s3.example.com\n"}
	for name, file := range map[string]string{"authority": cert, "doze.crt": cert, "doze.pem": key} {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(raw)
	}
	one, two, three := bootMachine(t, w, "one", files), bootMachine(t, w, "two", files), bootMachine(t, w, "three", files)

	began := time.Now()
	for _, m := range []*machine{one, two, three} {
		m.run(ctx, each)
	}
	said := one.run(ctx, first)
	t.Logf("%.1f s: the first host says how to join", time.Since(began).Seconds())
	token := regexp.MustCompile(`--join (dzj_\S+)`).FindStringSubmatch(said)
	if token == nil {
		t.Fatalf("the page leads to no token:\n%s", said)
	}
	others = strings.ReplaceAll(others, pageToken, token[1])
	two.run(ctx, others)
	three.run(ctx, strings.ReplaceAll(others, pageJoins, strangers["three"]))
	nodes := strangerNodes(ctx, t, one)
	t.Logf("%.1f s: three nodes have joined", time.Since(began).Seconds())
	one.run(ctx, fmt.Sprintf("doze node cordon %s %s; doze sandbox create %s --memory 512; doze node uncordon %[1]s %[2]s", nodes["one"].ID, nodes["two"].ID, firstSandbox))
	if out := one.run(ctx, "doze sandbox exec "+firstSandbox+" -- 'echo from the third'"); !strings.Contains(out, "from the third") {
		t.Errorf("the sandbox on the third node answers %q", out)
	}
	t.Logf("%.1f s: the first sandbox on the third node answers", time.Since(began).Seconds())
	page := one.run(ctx, "doze sandbox exec -d "+firstSandbox+` -- 'mkdir /site; echo from its preview >/site/page; exec python3 -m http.server 3000 -d /site' >/dev/null
		url=$(doze preview create `+firstSandbox+" open --port 3000 --public); until curl -sf $url/page; do sleep 0.2; done")
	if !strings.Contains(page, "from its preview") {
		t.Errorf("the preview of the sandbox answers %q", page)
	}
	at := one.run(ctx, "doze sandbox where "+firstSandbox+"; doze node sandboxes "+nodes["three"].ID)
	if !strings.Contains(at, nodes["three"].ID) || strings.Count(at, firstSandbox) != 2 {
		t.Errorf("the sandbox on the third node is said to be at:\n%s", at)
	}
	err = until(ctx, readyTime, func() error { // a node says it when it renews its lease
		if n := strangerNodes(ctx, t, one)["three"]; n.Sandboxes != 1 {
			return fmt.Errorf("the third node is %+v, want one sandbox", n)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	one.run(ctx, use)
}

// strangerNodes returns the nodes as doze node ls has them, by host, once all are ready.
func strangerNodes(ctx context.Context, t *testing.T, m *machine) map[string]doze.Node {
	t.Helper()
	by := map[string]doze.Node{}
	err := until(ctx, readyTime, func() error {
		var all []doze.Node
		out := m.run(ctx, "doze node ls -o json")
		if err := json.Unmarshal([]byte(out[max(0, strings.Index(out, "[\n")):]), &all); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		for _, n := range all {
			for name, address := range strangers {
				if n.URL == "https://"+address+":7084" && n.Present && n.State == doze.NodeReady {
					by[name] = n
				}
			}
		}
		if len(by) < 3 {
			return fmt.Errorf("the nodes are %+v", all)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return by
}

// grantBucket serves the empty bucket that the page takes for granted.
func grantBucket(t *testing.T, w *wire, cert, key string) {
	t.Helper()
	objects := t.TempDir()
	if err := os.Mkdir(filepath.Join(objects, pageBucket), 0o700); err != nil {
		t.Fatal(err)
	}
	grant(t, w, bucketHost, filepath.Join(testkit.Root(), "bin", "versitygw"), "--quiet", "--port", bucketAddress+":443", "--cert", cert, "--key", key, "--access", pageAccess, "--secret", pageSecret, "posix", objects)
}

// grantRecords serves the empty database that the page takes for granted. It wants a password.
func grantRecords(t *testing.T, w *wire) {
	t.Helper()
	dir, err := os.MkdirTemp("", "doze-stranger-records-") //nolint:usetesting // the server does not run as root
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program, who, err := postgres.Init(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	rules := "local all doze trust\nhost all doze 10.0.0.0/24 scram-sha-256\n"
	if err := os.WriteFile(filepath.Join(dir, "data", "pg_hba.conf"), []byte(rules), 0); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"--reuid", fmt.Sprint(who.Uid), "--regid", fmt.Sprint(who.Gid), "--clear-groups", program}, postgres.Arguments(dir)...)
	grant(t, w, recordsHost, "setpriv", append(args, "-c", "listen_addresses="+strangers[recordsHost])...)
	db, err := sql.Open("pgx", "postgres://doze@/postgres?host="+dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if err := until(t.Context(), readyTime, func() error { return db.PingContext(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"ALTER USER doze PASSWORD '" + pageDatabase + "'", "CREATE DATABASE doze"} {
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
}

// grant runs a server on a host of the page until the test ends.
func grant(t *testing.T, w *wire, host, program string, args ...string) {
	t.Helper()
	cmd := w.command(host, program, args...)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := errors.Join(cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait() // it was told
		if raw, _ := os.ReadFile(log.Name()); err != nil {
			t.Errorf("%s: %v: %s", host, err, raw)
		}
		_ = log.Close()
	})
}
