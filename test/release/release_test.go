// Package release_test makes a release twice, and installs, upgrades, removes and purges
// it on a Debian with systemd, while a sandbox runs. It takes minutes: make release-test.
package release_test

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/testkit"
)

var (
	build = flag.Bool("make", false, "make a release twice, and try it")
	made  = flag.String("made", "", "try two releases that were made, of two engines: `DIR,DIR`")
)

// The release that replaces the first one has another engine.
const (
	next       = "1000.0"
	nextEngine = "v0.0.0-next-9"
)

// TestRelease: what a commit is made into is the same each time, and what it installs
// is gone after a purge.
func TestRelease(t *testing.T) {
	if !*build && *made == "" {
		t.Skip("SKIPPED: a release takes minutes to make: run make release-test")
	}
	if os.Geteuid() != 0 {
		t.Fatal("a machine of its own needs root")
	}
	first, second, ok := strings.Cut(*made, ",")
	if !ok {
		first, second = makeReleases(t)
	}
	m := start(t)
	must(t, "cp", "-a", first, filepath.Join(m.root, "opt/1"))
	must(t, "cp", "-a", second, filepath.Join(m.root, "opt/2"))
	version := filepath.Base(second)
	clean := m.files(t)
	refuseInstallation(t, m)
	install(t, m)
	upgrade(t, m, version)
	remove(t, m)
	purge(t, m, clean)
	archive(t, m, clean, version)
}

// makeReleases makes a release twice, compares the two, and makes the one that replaces it.
func makeReleases(t *testing.T) (first, second string) {
	t.Helper()
	dir := t.TempDir()
	// Clones at two paths have what is committed, and nothing of this work tree.
	clones := []string{filepath.Join(dir, "a"), filepath.Join(dir, "elsewhere", "with-a-longer-name")}
	// The system below our files in the image is that of the day: all three have one.
	base := filepath.Join(dir, "base.tar")
	must(t, "mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates", "bookworm", base)
	for _, c := range clones { // before anybody commits more
		must(t, "git", "clone", "--quiet", testkit.Root(), c)
	}
	var twice []string
	for _, c := range clones {
		must(t, "make", "-C", c, "release", "DIST="+filepath.Join(c, "dist"), "BASE="+base)
		twice = append(twice, only(t, filepath.Join(c, "dist", "[0-9]*")))
	}
	equal(t, twice[0], twice[1])
	must(t, "make", "-C", clones[0], "release", "DIST="+filepath.Join(clones[0], "dist"), "RELEASE="+next, "ENGINE="+nextEngine, "BASE="+base)
	return twice[0], filepath.Join(clones[0], "dist", next)
}

// only returns the one file that a pattern names.
func only(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s names %v, %v: want one file", pattern, found, err)
	}
	return found[0]
}

// equal compares two releases, byte by byte.
func equal(t *testing.T, one, other string) {
	t.Helper()
	sums := map[string][]string{}
	for _, dir := range []string{one, other} {
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			raw, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			sums[f.Name()] = append(sums[f.Name()], fmt.Sprintf("%x", sha256.Sum256(raw)))
		}
	}
	if len(sums) != 11 { // a package, an archive, an image, a chart, five bills, the checksums, the script
		t.Errorf("the release has %d files, want 11: %v", len(sums), sums)
	}
	for name, s := range sums {
		if len(s) != 2 || s[0] != s[1] {
			t.Errorf("two builds of %s are not the same: %v", name, s)
		}
	}
}

// refuseInstallation has install.sh meet what it must refuse.
func refuseInstallation(t *testing.T, m *machine) {
	t.Helper()
	m.run(t, `cp -r /opt/1 /tmp/bad && for f in /tmp/bad/doze_*.deb; do echo >>$f; done`)
	m.refused(t, "sh /tmp/bad/install.sh", "is damaged")
	m.run(t, `rm -rf /tmp/bad/SHA256SUMS`)
	m.refused(t, "sh /tmp/bad/install.sh", "no SHA256SUMS")
	for program, c := range map[string][2]string{
		`case $1 in -m) echo aarch64;; -s) echo Linux;; -r) echo 6.1.0;; esac`:  {"aarch64", "is for x86_64"},
		`case $1 in -m) echo x86_64;; -s) echo Linux;; -r) echo 4.19.0;; esac`:  {"an old kernel", "install Linux 5.10 or newer"},
		`case $1 in -m) echo x86_64;; -s) echo Darwin;; -r) echo 24.0.0;; esac`: {"another system", "use a Linux host"},
	} {
		m.run(t, "mkdir -p /tmp/fake && printf '%s\\n' '#!/bin/sh' '"+program+"' >/tmp/fake/uname && chmod +x /tmp/fake/uname")
		t.Log("on ", c[0])
		m.refused(t, "PATH=/tmp/fake:$PATH sh /opt/1/install.sh", c[1])
	}
	m.refused(t, "setpriv --reuid=65534 sh /opt/1/install.sh", "not running as root")
	m.refused(t, "dpkg -s doze", "not installed")
	m.run(t, "rm -rf /tmp/bad /tmp/fake")
}

// install installs the first release, twice, and starts it.
func install(t *testing.T, m *machine) {
	t.Helper()
	m.run(t, "sh /opt/1/install.sh")
	m.refused(t, "systemctl is-active dozed", "inactive")
	m.run(t, "systemd-analyze verify dozed.service dozed-control@x.service dozed-node@x.service dozed-edge@x.service")
	m.run(t, "sh /opt/1/install.sh && dozed doctor")
	m.run(t, `sed -i 's,"listen","imagesDir": "/run/images"\,\n  "swap": "off"\,\n  "listen",' /etc/doze/config.json`)
	m.run(t, "systemctl enable --now dozed")
	m.until(t, "doze login --data /var/lib/doze")
	if mode := m.run(t, "stat -c %a /var/lib/doze/admin.key"); mode != "600" {
		t.Errorf("the admin key has mode %s, want 600", mode)
	}
	m.run(t, "doze create one --memory 512")
	// What it counts is in the memory of the process alone.
	m.run(t, `doze exec -d one 'i=0; while :; do i=$((i+1)); echo $i >/tmp/count; sleep 0.1; done'`)
	m.until(t, "doze exec one 'test -s /tmp/count'")
}

// count returns how far the process in a sandbox has come.
func count(t *testing.T, m *machine) int {
	t.Helper()
	var n int
	wait(t, "the process has written its count", func() bool {
		var err error
		n, err = strconv.Atoi(m.run(t, "doze exec one 'cat /tmp/count'"))
		return err == nil
	})
	return n
}

// grown waits until the process has counted on, from where it was. One that began anew
// would be far below.
func grown(t *testing.T, m *machine, before int) {
	t.Helper()
	after := count(t, m)
	if after < before {
		t.Fatalf("the process had counted to %d, and is at %d", before, after)
	}
	wait(t, "the process counts on", func() bool { return count(t, m) > after })
	t.Logf("the process had counted to %d, and is at %d", before, after)
}

// engines are the processes of engines in the machine, each with its program.
func engines(t *testing.T, m *machine) []string {
	t.Helper()
	out := m.run(t, `for p in /proc/[0-9]*; do
		e=$(readlink $p/exe 2>/dev/null) || continue
		case $e in *engines/*) echo ${p#/proc/} $e;; esac
	done`)
	return strings.Split(out, "\n")
}

// programs are those of some processes, each once.
func programs(processes []string) []string {
	var all []string
	for _, p := range processes {
		_, program, _ := strings.Cut(p, " ")
		all = append(all, program)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// upgrade installs the next release while a sandbox runs and is called.
func upgrade(t *testing.T, m *machine, version string) {
	t.Helper()
	before, ran, dozed := count(t, m), engines(t, m), m.run(t, "systemctl show -P MainPID dozed")
	m.run(t, `(while ! [ -e /tmp/stop ]; do
		doze exec one true >/tmp/last 2>&1 && echo >>/tmp/answered || cat /tmp/last >>/tmp/failed
	done; touch /tmp/stopped) >/dev/null 2>&1 &`)
	m.until(t, "test -s /tmp/answered")
	m.run(t, "sh /opt/2/install.sh")
	m.until(t, "test $(systemctl show -P MainPID dozed) -ne "+dozed+" && systemctl is-active dozed && doze whoami")
	m.run(t, "n=$(wc -l </tmp/answered); while [ $(wc -l </tmp/answered) -lt $((n + 5)) ]; do sleep 0.1; done; touch /tmp/stop")
	m.until(t, "test -e /tmp/stopped")
	t.Logf("during the upgrade, %s calls were answered", m.run(t, "wc -l </tmp/answered"))
	if failed := m.run(t, "cat /tmp/failed 2>/dev/null || :"); failed != "" {
		t.Errorf("calls failed during the upgrade:\n%s\n%s", failed, m.journal(t))
	}
	if v := m.run(t, "$(readlink /proc/$(systemctl show -P MainPID dozed)/exe) version"); !strings.Contains(v, version) {
		t.Errorf("after the upgrade dozed is %q, want %s", v, version)
	}
	grown(t, m, before)
	if status := m.run(t, "cat /etc/doze/config.json"); !strings.Contains(status, "/run/images") {
		t.Errorf("the upgrade replaced the configuration: %s", status)
	}
	now := engines(t, m)
	stayed := 0
	for _, e := range ran {
		if slices.Contains(now, e) {
			stayed++
		}
	}
	t.Logf("processes of engines: %d before, %d of them after", len(ran), stayed)
	if stayed < 2 { // the guest and its launcher
		t.Errorf("of the engines %q, %d run on: %q", ran, stayed, now)
	}
	m.run(t, "doze create two --memory 512 && doze exec two true")
	if now := programs(engines(t, m)); len(now) != len(programs(ran))+1 {
		t.Errorf("after the upgrade a sandbox was made with these engines there, want one more than before: %q", now)
	}
}

// remove removes the package, and installs it again: the sandbox goes on with its memory.
func remove(t *testing.T, m *machine) {
	t.Helper()
	before := count(t, m)
	t.Log(m.run(t, "dpkg --remove doze"))
	nothingRuns(t, m)
	m.run(t, "test -e /var/lib/doze/doze.db && test -e /etc/doze/config.json && ! test -e /usr/bin/dozed")
	m.run(t, "sh /opt/2/install.sh && systemctl enable --now dozed")
	m.until(t, "doze login --data /var/lib/doze")
	grown(t, m, before)
}

// purge leaves nothing of ours.
func purge(t *testing.T, m *machine, clean string) {
	t.Helper()
	m.run(t, "sh /opt/2/install.sh --purge")
	nothingRuns(t, m)
	m.same(t, clean)
}

// archive installs the archive, starts it, and purges it.
func archive(t *testing.T, m *machine, clean, version string) {
	t.Helper()
	m.run(t, "sh /opt/1/install.sh --archive")
	m.refused(t, "sh /opt/1/install.sh", "run install.sh --archive to upgrade it")
	m.run(t, `sed -i 's,"listen","imagesDir": "/run/images"\,\n  "swap": "off"\,\n  "listen",' /etc/doze/config.json`)
	m.run(t, "systemctl enable --now dozed")
	m.until(t, "doze login --data /var/lib/doze")
	m.run(t, "doze create one --memory 512 && doze exec one true")
	m.run(t, "sh /opt/2/install.sh --archive")
	m.until(t, "dozed version | grep -F "+version+" && doze exec one true")
	m.run(t, "sh /opt/2/install.sh --purge")
	nothingRuns(t, m)
	m.same(t, clean)
}

// nothingRuns looks for processes, mounts, control groups and rules of ours.
func nothingRuns(t *testing.T, m *machine) {
	t.Helper()
	for what, line := range map[string]string{
		"processes":      "readlink /proc/[0-9]*/exe | grep doze || :",
		"mounts":         "grep doze /proc/self/mounts | grep -v /run/images || :",
		"control groups": "find /sys/fs/cgroup -name 'doze-[0-9a-f]*' | grep -v dozed.service || :",
		"rules":          "nft list ruleset",
		"namespaces":     "ip netns list",
	} {
		if out := m.run(t, line); out != "" {
			t.Errorf("%s are left:\n%s", what, out)
		}
	}
}

// files lists what is in the machine, but for what dpkg, apt and systemd note of themselves.
func (m *machine) files(t *testing.T) string {
	t.Helper()
	return m.run(t, `find / /run/doze -xdev -not -path '/var/lib/dpkg*' -not -path '/var/log*' -not -path '/var/cache*' -not -path '/var/lib/systemd*' 2>/dev/null | sort`)
}

// same compares the files of the machine with those that it had.
func (m *machine) same(t *testing.T, clean string) {
	t.Helper()
	was, is := strings.Split(clean, "\n"), strings.Split(m.files(t), "\n")
	for _, f := range is {
		if !slices.Contains(was, f) {
			t.Errorf("%s is left", f)
		}
	}
	for _, f := range was {
		if !slices.Contains(is, f) {
			t.Errorf("%s is gone", f)
		}
	}
}
