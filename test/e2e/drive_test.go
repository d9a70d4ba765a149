package e2e_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/bucket"
)

// startDrives runs a platform with a bucket in which there is the drive "shared".
func startDrives(t *testing.T, args ...string) (*testkit.Platform, *client.Client, *bucket.Bucket) {
	t.Helper()
	srv := bucket.Serve(t)
	p, c := start(t, append(args, "--drives", srv.URL, "--drives-credentials", srv.Credentials)...)
	if _, err := c.CreateDrive(t.Context(), doze.Drive{Metadata: doze.Metadata{Name: "shared"}}); err != nil {
		t.Fatal(err)
	}
	return p, c, srv
}

// mount puts a drive into a sandbox.
func mount(t *testing.T, agent *client.Agent, m doze.DriveMount) {
	t.Helper()
	if _, err := agent.MountDrive(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

// TestDrives has two sandboxes share what they write, within their rights, and
// looks for the credentials of the bucket in one of them.
func TestDrives(t *testing.T) {
	t.Parallel()
	_, c, srv := startDrives(t, "--pause-after", "60s")
	_, one := create(t, c, named("one", 512))
	_, two := create(t, c, named("two", 512))
	mount(t, one, doze.DriveMount{Drive: "shared", MountPath: "/mnt/shared"})
	mount(t, one, doze.DriveMount{Drive: "shared", MountPath: "/mnt/shared"}) // it is there
	mount(t, two, doze.DriveMount{Drive: "shared", MountPath: "mnt/part", DrivePath: "/part", ReadOnly: true})

	work := `set -e; cd /mnt/shared; mkdir -p part/deep; echo hello >part/a; echo more >>part/a; mv part/a part/deep/b
		dd if=/dev/urandom of=part/large bs=1M count=3 2>/dev/null; sha256sum <part/large; : >part/empty; echo x >gone; rm gone
		printf 0123456789 >edit; printf AB | dd of=edit bs=1 seek=4 conv=notrunc 2>/dev/null; truncate -s 8 edit; cat edit; rmdir part/deep 2>/dev/null || echo " full"; ls -A . part`
	sum, rest, _ := strings.Cut(sh(t, one, work), "\n")
	if want := "0123AB67 full\n.:\nedit\npart\n\npart:\ndeep\nempty\nlarge"; rest != want {
		t.Errorf("it says %q, want %q", rest, want)
	}
	if got := sh(t, two, "cd /mnt/part; cat deep/b; sha256sum <large; touch x 2>&1 | grep -o Read-only; ls"); got != "hello\nmore\n"+sum+"\nRead-only\ndeep\nempty\nlarge" {
		t.Errorf("the other one reads %q", got)
	}
	if keys := srv.Keys(t); len(keys) == 0 {
		t.Error("the bucket is empty")
	}
	// The words are put together inside, so that the search does not find itself.
	halves := len(bucket.Secret) / 2
	look := `word=` + bucket.Secret[:halves] + `; word=$word` + bucket.Secret[halves:] + `
		for f in /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/mounts; do grep -q $word $f 2>/dev/null && echo $f; done
		grep -rl $word /etc /root /home /tmp /var /run /mnt 2>/dev/null; true`
	if got := sh(t, one, look); got != "" {
		t.Errorf("the credentials are in %q", got)
	}

	list, err := one.DriveMounts(t.Context())
	if diff := cmp.Diff([]doze.DriveMount{{Drive: "shared", MountPath: "/mnt/shared", DrivePath: "/"}}, list); diff != "" || err != nil {
		t.Errorf("mounted are (-want +got), %v:\n%s", err, diff)
	}
	mount(t, one, doze.DriveMount{Drive: "shared", MountPath: "/mnt/owned", UIDMap: "1234", GIDMap: "2345"})
	if got := sh(t, one, "stat -c %u:%g /mnt/owned /mnt/owned/edit"); got != "1234:2345\n1234:2345" {
		t.Errorf("with ids of its own, the files belong to %q", got)
	}
	if err := one.UnmountDrive(t.Context(), "/mnt/owned"); err != nil {
		t.Error(err)
	}
	for what, tt := range map[string]struct {
		m    doze.DriveMount
		want doze.Kind
	}{
		"another part there":  {doze.DriveMount{Drive: "shared", MountPath: "/mnt/shared", DrivePath: "/part"}, doze.Conflict},
		"below another":       {doze.DriveMount{Drive: "shared", MountPath: "/mnt/shared/x"}, doze.Conflict},
		"a mount point":       {doze.DriveMount{Drive: "shared", MountPath: "/dev/shm"}, doze.Conflict},
		"one of the engine's": {doze.DriveMount{Drive: "shared", MountPath: "/tmp"}, doze.Conflict},
		"no drive":            {doze.DriveMount{Drive: "none", MountPath: "/x"}, doze.Invalid},
		"no path":             {doze.DriveMount{Drive: "shared"}, doze.Invalid},
		"a way out":           {doze.DriveMount{Drive: "shared", MountPath: "/x/../y"}, doze.Invalid},
		"bad ids":             {doze.DriveMount{Drive: "shared", MountPath: "/x", UIDMap: "-1"}, doze.Invalid},
	} {
		if _, err := one.MountDrive(t.Context(), tt.m); kind(err) != tt.want {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := c.DeleteDrive(t.Context(), "shared"); kind(err) != doze.Conflict {
		t.Errorf("deleted while it is mounted: %v", err)
	}
	spawn(t, one, client.Command{Name: "holder", Command: "cd /mnt/shared && touch /tmp/there && sleep 1000"})
	sh(t, one, "while [ ! -e /tmp/there ]; do sleep 0.01; done")
	if err := one.UnmountDrive(t.Context(), "/mnt/shared"); kind(err) != doze.Internal {
		t.Errorf("unmounted while it is in use: %v", err)
	}
	if _, err := one.Kill(t.Context(), "holder"); err != nil {
		t.Fatal(err)
	}
	until(t, "it is unmounted", func() bool { return one.UnmountDrive(t.Context(), "/mnt/shared") == nil })
	if got := sh(t, one, "ls -A /mnt/shared; grep -c ' fuse ' /proc/mounts || true"); got != "0" {
		t.Errorf("after that there are %q", got)
	}
}

// TestDrivesByTheAPI has the agent write and remove trees on a drive, which it
// serves itself, while processes end: signals reach it in the middle of a call.
func TestDrivesByTheAPI(t *testing.T) {
	t.Parallel()
	_, c, srv := startDrives(t, "--pause-after", "60s")
	_, agent := create(t, c, named("a", 512))
	mount(t, agent, doze.DriveMount{Drive: "shared", MountPath: "/d"})
	forever := 0
	spawn(t, agent, client.Command{Name: "signals", Timeout: &forever, Command: "while :; do (sleep 0.01 &); sleep 0.02; done"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range 3 {
		if _, err := agent.WriteTree(ctx, "/d/tree", map[string]string{"a/b": "1", "c/d/e": "2", "f": "3"}); err != nil {
			t.Fatal(i, err)
		}
		if _, err := agent.Remove(ctx, "/d/tree", true); err != nil {
			t.Fatal(i, err)
		}
	}
	if keys := srv.Keys(t); len(keys) > 0 {
		t.Errorf("the bucket has %q", keys)
	}
}

// TestDrivesSleep has a file open for writing, and a directory in use, while the
// sandbox sleeps on disk, dozed is killed, and the host restarts.
func TestDrivesSleep(t *testing.T) {
	t.Parallel()
	p, c, srv := startDrives(t, "--pause-after", "200ms", "--save-after", "0s", "--disk-after", "400ms", "--ready", "0")
	sb, agent := create(t, c, named("a", 512))
	mount(t, agent, doze.DriveMount{Drive: "shared", MountPath: "/d"})
	forever := 0
	spawn(t, agent, client.Command{Name: "writer", Timeout: &forever, Command: `cd /d; exec 3>log
		i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo $i >&3; sleep 0.02; done; exec 3>&-; echo done >/tmp/end`})
	lines := func() float64 { return number(t, sh(t, agent, "cat /d/log 2>/dev/null | wc -l")) }
	until(t, "it writes", func() bool { return lines() > 0 })
	before := lines()
	for _, tt := range []struct {
		what string
		do   func() error
	}{
		{"sleep", func() error { return nil }},
		{"kill", func() error { err := p.Kill(); revive(t, p); return err }},
		{"boot", func() error { err := p.Reboot(); revive(t, p); return err }},
	} {
		awaitTier(t, p, sb.Metadata.Name, "disk")
		if err := tt.do(); err != nil {
			t.Fatal(tt.what, err)
		}
		until(t, "after "+tt.what+" it writes on", func() bool { return lines() > before })
		before = lines()
	}
	// Killed while it is awake, too: what is written goes on when dozed is back.
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	revive(t, p)
	if got := sh(t, agent, "touch /tmp/stop; while [ ! -e /tmp/end ]; do sleep 0.01; done; sort -n -c /d/log && uniq /d/log | wc -l"); number(t, got) < before {
		t.Errorf("the log has %s lines", got)
	}
	if _, err := c.Delete(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	drives := func() (n int) {
		for _, key := range srv.Keys(t) {
			if strings.HasSuffix(key, "/log") {
				n++
			}
		}
		return n
	}
	if drives() != 1 {
		t.Errorf("the bucket has %v", srv.Keys(t))
	}
	until(t, "the drive is deleted", func() bool { return c.DeleteDrive(t.Context(), "shared") == nil })
	until(t, "its files are removed", func() bool { return drives() == 0 })
}

// TestDrivesOfMany: when dozed is back after it was killed, all who waited for it
// go on.
func TestDrivesOfMany(t *testing.T) {
	t.Parallel()
	p, c, _ := startDrives(t, "--pause-after", "60s")
	_, agent := create(t, c, named("many", 512))
	mount(t, agent, doze.DriveMount{Drive: "shared", MountPath: "/d"})
	forever := 0
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		spawn(t, agent, client.Command{Name: name, Timeout: &forever, Command: "mkdir /d/" + name + "; cd /d/" + name + "; while [ ! -e /tmp/stop ]; do [ -e x ] || : >/tmp/" + name + "; done"})
	}
	const all = "cd /tmp; rm -f a b c d e f; until [ -e a -a -e b -a -e c -a -e d -a -e e -a -e f ]; do sleep 0.01; done; cd /d; echo *"
	for range 3 {
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		revive(t, p)
		if got := sh(t, agent, all); got != "a b c d e f" {
			t.Errorf("on the drive are %q", got)
		}
	}
	sh(t, agent, ": >/tmp/stop")
}

// TestDrivesOfCopies: what is made of a sandbox with a drive has none, says so, and
// can have it again in the same place. The sandbox itself keeps it.
func TestDrivesOfCopies(t *testing.T) {
	t.Parallel()
	_, c, srv := startDrives(t, "--pause-after", "60s")
	_, agent := create(t, c, named("box", 512))
	d := doze.DriveMount{Drive: "shared", MountPath: "/d"}
	mount(t, agent, d)
	sh(t, agent, "echo before >/d/file; : >/d/other")
	spawn(t, agent, client.Command{Name: "holder", Command: "cd /d && exec sleep 1000"})
	if _, err := c.CreateSnapshot(t.Context(), "box", "n"); err != nil {
		t.Fatal(err)
	}
	// It has none, or one that nobody serves, where it was; and can have one.
	bare := func(what string, agent *client.Agent, left string) {
		t.Helper()
		if all, err := agent.DriveMounts(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("%s has %v, %v", what, all, err)
		}
		if got := sh(t, agent, "ls -A /d 2>&1 || true"); !strings.Contains(got, left) || left == "" && got != "" {
			t.Errorf("%s sees %q at /d", what, got)
		}
		mount(t, agent, d)
		if got := sh(t, agent, "cat /d/file; echo more >>/d/file; ls -A /d"); got != "before\nfile\nother" {
			t.Errorf("%s, with its drive, reads %q", what, got)
		}
		sh(t, agent, "echo before >/d/file")
	}
	const unserved = "not connected"
	if _, err := c.ForkSnapshot(t.Context(), "n", into("copy")); err != nil {
		t.Fatal(err)
	}
	_, copied := open(t, c, "copy")
	bare("a fork", copied, unserved)
	if got := sh(t, agent, "cat /d/file"); got != "before" {
		t.Errorf("its source reads %q", got)
	}
	if _, err := c.Restore(t.Context(), "box", "n"); err != nil {
		t.Fatal(err)
	}
	bare("a restored sandbox", agent, unserved)

	pack(t, c)
	if _, err := c.Delete(t.Context(), "copy"); err != nil {
		t.Fatal(err)
	}
	until(t, "an archived sandbox has no drive", func() bool {
		err := c.DeleteDrive(t.Context(), "shared")
		if err != nil && kind(err) != doze.Conflict {
			t.Fatal(err)
		}
		return err == nil
	})
	unpack(t, c)
	if got := sh(t, agent, "ls -A /d"); got != "" {
		t.Errorf("the archive had %q", got)
	}
	if all, err := agent.DriveMounts(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("an unarchived sandbox has %v, %v", all, err)
	}
	until(t, "the files of the drive are removed", func() bool { return len(srv.Keys(t)) == 0 })
}

// TestDrivesAndGit: a repository on a drive, which git maps into memory, and what another
// sandbox clones of it.
func TestDrivesAndGit(t *testing.T) {
	t.Parallel()
	p, c, _ := startDrives(t, "--pause-after", "500ms", "--save-after", "200ms", "--disk-after", "1s", "--swap", "off")
	_, agent := create(t, c, named("git", 512))
	mount(t, agent, doze.DriveMount{Drive: "shared", MountPath: "/d"})
	const git = "export HOME=/root GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a; "
	sh(t, agent, git+`set -e; git init -q /d/repository; cd /d/repository; mkdir sub; echo one >sub/file; head -c 100000 /dev/zero >large
		git add .; git commit -qm first; echo two >>sub/file; git commit -qam second; git repack -adq`)
	awaitTier(t, p, "git", "disk")
	got := sh(t, agent, git+`set -e; cd /d/repository; echo three >>sub/file; git commit -qam third; git status --short; git log --format=%s; git fsck 2>&1; git diff --stat HEAD~2 | tail -1`)
	if got != "third\nsecond\nfirst\n 1 file changed, 2 insertions(+)" {
		t.Errorf("it says %q", got)
	}
	_, other := create(t, c, named("other", 512))
	mount(t, other, doze.DriveMount{Drive: "shared", MountPath: "/d", ReadOnly: true})
	if got := sh(t, other, git+"set -e; git config --global --add safe.directory '*'; git clone -q /d/repository /root/clone; cd /root/clone; cmp large /d/repository/large; cat sub/file"); got != "one\ntwo\nthree" {
		t.Errorf("a clone in another sandbox has %q", got)
	}
}

// TestDrivesMap: a process maps files of a drive as they are, to read or for itself, and
// has the mapping after a sleep on disk. What others would see of it is refused.
func TestDrivesMap(t *testing.T) {
	t.Parallel()
	p, c, _ := startDrives(t, "--pause-after", "500ms", "--save-after", "200ms", "--disk-after", "1s", "--swap", "off")
	_, agent := create(t, c, named("maps", 512))
	mount(t, agent, doze.DriveMount{Drive: "shared", MountPath: "/d"})
	put(t, agent, "/root/maps.py", `
import hashlib, mmap, os, sys, time
data = os.urandom(3 << 20) + b"end"
with open("/d/file", "wb") as f: f.write(data)
with open("/d/file", "rb") as f: shared = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
with open("/d/file", "rb") as f: private = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
with open("/d/file", "rb") as f: part = mmap.mmap(f.fileno(), 8192, flags=mmap.MAP_PRIVATE, offset=1 << 20)
private[5:8] = b"own"
try:
    with open("/d/file", "r+b") as f: mmap.mmap(f.fileno(), 0)
    print("a mapping that writes to the file")
except OSError as e: print(e.strerror)
def check():
    assert shared[:] == data and private[:5] == data[:5] and private[5:8] == b"own" and private[8:] == data[8:] and part[:] == data[1 << 20:(1 << 20) + 8192]
    assert open("/d/file", "rb").read() == data
check()
print("mapped", flush=True)
while not os.path.exists("/tmp/go"): time.sleep(0.01)
check()
print("still", flush=True)
`)
	forever := 0
	proc := spawn(t, agent, client.Command{Name: "maps", Timeout: &forever, Command: "exec python3 /root/maps.py"})
	said := func() string {
		logs, err := agent.Logs(t.Context(), proc.PID)
		if err != nil || logs.Stderr != "" {
			t.Fatal(logs, err)
		}
		return logs.Stdout
	}
	until(t, "it has mapped the file", func() bool { return said() == "No such device\nmapped\n" })
	awaitTier(t, p, "maps", "disk")
	sh(t, agent, ": >/tmp/go")
	until(t, "it has the mapping still", func() bool { return strings.HasSuffix(said(), "still\n") })
}

// TestDrivesConsistency: what one sandbox closed or synced, another one sees when it opens
// the file. What is written before is nobody else's yet.
func TestDrivesConsistency(t *testing.T) {
	t.Parallel()
	_, c, _ := startDrives(t, "--pause-after", "60s")
	_, one := create(t, c, named("one", 512))
	_, two := create(t, c, named("two", 512))
	for _, agent := range []*client.Agent{one, two} {
		mount(t, agent, doze.DriveMount{Drive: "shared", MountPath: "/d"})
	}
	put(t, one, "/root/writer.py", `
import os, sys, time
f = os.open("/d/file", os.O_RDWR | os.O_CREAT)
def step(name):
    open("/tmp/" + name, "w")
    while not os.path.exists("/tmp/after-" + name): time.sleep(0.01)
for i in range(1000): os.write(f, b"%07d\n" % i)
assert os.fstat(f).st_size == 8000 and os.stat("/d/file").st_size == 8000
assert os.pread(f, 8, 7992) == b"0000999\n" and open("/d/file").read(8) == "0000000\n"
step("written")
os.fsync(f)
step("synced")
os.write(f, b"more\n")
os.close(f)
step("closed")
`)
	spawn(t, one, client.Command{Name: "writer", Command: "exec python3 /root/writer.py"})
	await := func(step string) {
		t.Helper()
		until(t, "it is "+step, func() bool { return sh(t, one, "[ -e /tmp/"+step+" ] && echo yes || true") == "yes" })
	}
	next := func(step string) { t.Helper(); sh(t, one, ": >/tmp/after-"+step) }
	await("written")
	if got := sh(t, two, "cat /d/file 2>/dev/null | wc -c"); got != "0" {
		t.Errorf("before a sync the other one reads %s bytes", got)
	}
	next("written")
	await("synced")
	if got := sh(t, two, "wc -c </d/file; tail -n 1 /d/file"); got != "8000\n0000999" {
		t.Errorf("after a sync the other one reads %q", got)
	}
	next("synced")
	await("closed")
	time.Sleep(time.Second) // for so long the kernel believes what it was told
	if got := sh(t, two, "wc -c </d/file; tail -n 1 /d/file"); got != "8005\nmore" {
		t.Errorf("after a close the other one reads %q", got)
	}
	next("closed")
}

// TestCLIDrives uses drives by the command line.
func TestCLIDrives(t *testing.T) {
	t.Parallel()
	p, _, _ := startDrives(t)
	s := shell{t.TempDir()}
	s.ok(t, "doze", "login", "--address", p.Address, "--data", p.Data)
	s.ok(t, "doze", "drive", "create", "assets")
	for _, name := range []string{"one", "two"} {
		s.ok(t, "doze", "sandbox", "create", name, "--memory", "256")
	}
	s.ok(t, "doze", "drive", "mount", "one", "assets", "/mnt/assets")
	if out := s.ok(t, "doze", "drive", "mount", "two", "assets", "/web", "--part", "/web", "--read-only"); !strings.Contains(out, "yes") {
		t.Error(out)
	}
	s.ok(t, "doze", "sandbox", "exec", "one", "--", "mkdir /mnt/assets/web && echo hello >/mnt/assets/web/index")
	if out := s.ok(t, "doze", "sandbox", "exec", "two", "--", "cat /web/index; touch /web/x 2>/dev/null || echo refused"); out != "hello\nrefused\n" {
		t.Errorf("it says %q", out)
	}
	if out := s.ok(t, "doze", "drive", "ls"); !strings.Contains(out, "assets") || !strings.Contains(out, "shared") {
		t.Error(out)
	}
	if out := s.ok(t, "doze", "drive", "mounts", "one"); !strings.Contains(out, "/mnt/assets") {
		t.Error(out)
	}
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"create", "assets"}, 4, "already"},
		{[]string{"rm", "assets"}, 4, "mounted"},
		{[]string{"mount", "one", "none", "/x"}, 2, "none"},
		{[]string{"mount", "one", "shared", "/mnt/assets"}, 4, "unmount"},
		{[]string{"unmount", "one", "/mnt"}, 1, "/mnt"},
		{[]string{"mounts", "none"}, 3, "none"},
	} {
		if r := s.run(t, "", append([]string{"doze", "drive"}, tt.args...)...); r.code != tt.code || !strings.Contains(r.err, tt.says) {
			t.Errorf("%q: %+v", tt.args, r)
		}
	}
	s.ok(t, "doze", "drive", "unmount", "one", "/mnt/assets")
	s.ok(t, "doze", "drive", "unmount", "two", "/web")
	s.ok(t, "doze", "drive", "rm", "assets")
}
