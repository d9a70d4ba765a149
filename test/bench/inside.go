package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/npm"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/freeport"
)

const (
	// insideMemory is the memory of each sandbox. Half of it can be files: the file of 1 GB, the
	// cluster of PostgreSQL, and the modules of npm are at most 2 GB.
	insideMemory doze.Megabytes = 4608
	// insideStorage holds the same on disk.
	insideStorage doze.Megabytes = 4096
	// insideFiles is the size of the tmpfs in which the yardstick writes.
	insideFiles = "size=3g"
	// insideImage is the name of the image that all of them share.
	insideImage = "bench-inside"
)

// insideDockerfile makes the image. The cluster of PostgreSQL is made later, in its place.
const insideDockerfile = `FROM doze/base-image
RUN mkdir -p /etc/postgresql-common && echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf && \
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  gcc git libc6-dev postgresql python3 redis-server redis-tools sqlite3 && apt-get clean
`

// insidePrelude precedes every script, natively and in a sandbox.
const insidePrelude = `export HOME=/root LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin REDIS=%d
export PGHOST=127.0.0.1 PGUSER=postgres PGDATABASE=postgres PGPORT=%d
mkdir -p /bench && cd /bench || exit
`

// insideTimed runs a command in the same shell, and prints the microseconds that it took. What
// the command prints is for its failure. Nothing is started for the clock.
const insideTimed = `before=$EPOCHREALTIME
{ %s
} >/bench/said 2>&1 || { tail -n 5 /bench/said >&2; exit 1; }
after=$EPOCHREALTIME
echo $((${after/./} - ${before/./}))
`

// insideTask is something that users do in a sandbox. All scripts are for bash, as root, in an empty
// directory of the root file system.
type insideTask struct {
	name    string
	rounds  int
	bytes   int64  // that the command moves, if it is about that
	prepare string // once
	before  string // each command, and not measured
	command string
}

// smallFiles makes, writes, renames, reads and removes 10,000 files.
const smallFiles = `import os
os.makedirs("small")
for i in range(10000):
    name = f"small/{i % 100}-{i}"
    with open(name, "w") as f: f.write("x" * 200)
    os.rename(name, name + ".txt")
for entry in os.scandir("small"):
    with open(entry.path) as f: assert len(f.read()) == 200
for name in os.listdir("small"): os.remove("small/" + name)
os.rmdir("small")
`

// compiled prints a program of C with 400 functions.
const compiled = `print("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>")
for i in range(400):
    print("int f%d(int n, char *s) { int a = n; for (int i = 0; i < n; i++) { a += (int)strlen(s) * i; if (a %% %d == 0) a ^= atoi(s); else a += %d; } return a; }" % (i, i + 2, i))
print("int main(int n, char **v) { int a = 0;")
for i in range(400): print("a += f%d(n, v[0]);" % i)
print("printf(\"%d\\n\", a); }")
`

// committed prints 2,000 transactions.
const committed = `print("create table t (id integer primary key, word text);")
for i in range(2000): print(f"insert into t values ({i}, 'word {i}');")
`

// switches is a program of C. It makes the cheapest system call, or has two processes send
// each other a byte, so many times.
const switches = `#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int n, char **v) {
  int there[2], back[2]; char c = 0; long many = atol(v[2]);
  if (v[1][0] == 'c') { for (long i = 0; i < many; i++) syscall(SYS_getppid); return 0; }
  if (pipe(there) || pipe(back)) return 1;
  if (!fork()) { for (long i = 0; i < many; i++) if (read(there[0], &c, 1) != 1 || write(back[1], &c, 1) != 1) _exit(1); _exit(0); }
  for (long i = 0; i < many; i++) if (write(there[1], &c, 1) != 1 || read(back[0], &c, 1) != 1) return 1;
}
`

// compileSwitches makes it.
const compileSwitches = "cat > switches.c <<'END'\n" + switches + "END\ngcc -O2 -o switches switches.c"

// insideSmall is the row that has a target between two sandboxes.
const insideSmall = "10,000 small files"

// insideTasks are the rows, in their order.
var insideTasks = []insideTask{
	{
		name: "npm install", rounds: 3,
		before:  "rm -rf app /root/.npm && mkdir app && echo '{}' > app/package.json",
		command: "cd app && npm install --no-audit --no-fund express@4.21.2 lodash@4.17.21 typescript@5.7.3",
	},
	{
		name: "git clone of 2,000 files", rounds: 5,
		prepare: "git init -q work && cd work && git config user.name a && git config user.email a && " +
			"for i in {1..2000}; do mkdir -p $((i % 50)); seq $i $((i + 200)) > $((i % 50))/$i; done && " +
			"git add . && git commit -qm first && git clone -q --bare . ../bare.git && rm -rf ../work",
		before: "rm -rf copy", command: "git clone -q --no-local bare.git copy",
	},
	{
		name: "gcc -O2 of 400 functions", rounds: 5,
		prepare: "cat > compiled.py <<'END'\n" + compiled + "END\npython3 compiled.py > compiled.c",
		before:  "rm -f compiled", command: "gcc -O2 -o compiled compiled.c",
	},
	{
		name: "SQLite, 2,000 commits", rounds: 5,
		prepare: "cat > committed.py <<'END'\n" + committed + "END\npython3 committed.py > committed.sql",
		before:  "rm -f db*", command: "sqlite3 -bail db < committed.sql",
	},
	{
		name: "PostgreSQL on loopback, 4,000 reads", rounds: 5,
		prepare: "install -d -o postgres pg && bin=$(echo /usr/lib/postgresql/*/bin) && cd pg && su postgres -c \"$bin/initdb -D /bench/pg/data -A trust >/dev/null && " +
			"$bin/pg_ctl -D /bench/pg/data -w -l /bench/pg/log -o '-p $PGPORT -k /tmp -c listen_addresses=127.0.0.1' start >/dev/null\" && " +
			"$bin/pgbench -q -i -s 2",
		command: "$(echo /usr/lib/postgresql/*/bin)/pgbench -n -S -c 4 -t 1000",
	},
	{
		name: "PostgreSQL on loopback, 800 writes", rounds: 5,
		command: "$(echo /usr/lib/postgresql/*/bin)/pgbench -n -N -c 4 -t 200",
	},
	{
		name: "Redis on loopback, 20,000 GETs", rounds: 5,
		prepare: "redis-server --port $REDIS --bind 127.0.0.1 --save '' --daemonize yes --logfile /bench/redis.log >/dev/null && " +
			"for i in {1..100}; do redis-cli -p $REDIS ping 2>/dev/null | grep -q PONG && exit; sleep 0.1; done; exit 1",
		command: "redis-benchmark -h 127.0.0.1 -p $REDIS -t get -c 20 -n 20000 -q",
	},
	{name: "100,000 system calls", rounds: 5, prepare: compileSwitches, command: "./switches call 100000"},
	{name: "10,000 bytes there and back between processes", rounds: 5, prepare: compileSwitches, command: "./switches message 10000"},
	{name: "500 forks", rounds: 5, command: "for ((i = 0; i < 500; i++)); do (:); done"},
	{name: "500 forks with exec", rounds: 5, command: "for ((i = 0; i < 500; i++)); do /bin/true; done"},
	{
		name: insideSmall, rounds: 5,
		prepare: "cat > small.py <<'END'\n" + smallFiles + "END",
		before:  "rm -rf small", command: "python3 small.py",
	},
	{name: "write 1 GB", rounds: 3, bytes: 1 << 30, before: "rm -f large", command: "dd if=/dev/zero of=large bs=1M count=1024"},
	// The file of the row before it is not needed any more, and takes memory.
	{name: "Python start", rounds: 20, before: "rm -f large", command: "python3 -c pass"},
}

func natively(task string) string { return task + ", native" }

func filesInMemory(task string) string { return task + ", in memory" }

func filesOnDisk(task string) string { return task + ", on disk" }

// nextToMemory is the row that compares the two sandboxes.
func nextToMemory(task string) string { return task + ", on disk next to in memory" }

// insideCases names all rows of the benchmark.
func insideCases() (names []string) {
	for _, t := range insideTasks {
		names = append(names, natively(t.name), filesInMemory(t.name), filesOnDisk(t.name))
		if t.name == insideSmall {
			names = append(names, nextToMemory(t.name))
		}
	}
	return names
}

// workplace is where tasks run: it runs a script of bash, and returns what that printed.
type workplace struct {
	name string
	run  func(ctx context.Context, script string) (string, error)
	ends func() error
}

// insideWork does the same work natively in a chroot, and in sandboxes of the same image. The files of
// the chroot are in memory, like those of a sandbox: neither waits for a disk.
func insideWork(ctx context.Context, dir string, only *regexp.Regexp) (_ table, err error) {
	var all latencies
	registry := npm.Find(ctx)
	p, err := testkit.Start(ctx, testkit.Options{Dir: dir, Fast: true, Args: append(buildArgs("--pause-after", "1h"), testkit.Mirrors(ctx, registry)...)})
	if err != nil {
		return all, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	c, err := p.Client()
	if err != nil {
		return all, err
	}
	places, err := insidePlaces(ctx, p, c, dir)
	defer func() {
		for _, at := range places {
			err = errors.Join(err, at.ends())
		}
	}()
	if err != nil {
		return all, err
	}
	prelude, err := insidePorts(ctx)
	if err != nil {
		return all, err
	}
	settings := fmt.Sprintf("cat > /root/.npmrc <<'END'\n%sEND\ncat > /root/.npm-authorities <<'END'\n%s\nEND\n", registry.Config("/root/.npm-authorities"), registry.Authorities)
	for _, at := range places {
		if _, err := at.run(ctx, prelude+settings); err != nil {
			return all, fmt.Errorf("settings of npm, %s: %w", at.name, err)
		}
	}
	for _, t := range insideTasks {
		wanted := only.MatchString(t.name)
		// A later task may need the server that this one starts.
		if t.prepare != "" && (wanted || only.MatchString(follower(t))) {
			for _, at := range places {
				if _, err := at.run(ctx, prelude+t.prepare); err != nil {
					return all, fmt.Errorf("prepare %s, %s: %w", t.name, at.name, err)
				}
			}
		}
		if !wanted {
			continue
		}
		rows, err := t.measure(ctx, places, prelude)
		all = append(all, rows...)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// follower is the name of the task that uses what another one prepared, or of that one.
func follower(t insideTask) string {
	for i, next := range insideTasks[1:] {
		if insideTasks[i].name == t.name && next.prepare == "" && strings.HasPrefix(next.name, "PostgreSQL") {
			return next.name
		}
	}
	return t.name
}

// measure runs a task in all places, in turn: what the machine does besides hits all of them.
func (t insideTask) measure(ctx context.Context, places []workplace, prelude string) (rows latencies, err error) {
	for i, name := range []string{natively(t.name), filesInMemory(t.name), filesOnDisk(t.name)} {
		rows = append(rows, &series{name: name, bytes: t.bytes})
		if i > 0 {
			rows[i].against = rows[0]
		}
	}
	for range times(t.rounds) {
		for i, at := range places {
			if t.before != "" {
				if _, err := at.run(ctx, prelude+t.before); err != nil {
					return rows, fmt.Errorf("before %s: %w", rows[i].name, err)
				}
			}
			said, err := at.run(ctx, prelude+fmt.Sprintf(insideTimed, t.command))
			if err != nil {
				return rows, fmt.Errorf("%s: %w", rows[i].name, err)
			}
			took, err := strconv.ParseInt(strings.TrimSpace(said), 10, 64)
			if err != nil {
				return rows, fmt.Errorf("%s: no time: %w", rows[i].name, err)
			}
			rows[i].add(time.Duration(took) * time.Microsecond)
		}
	}
	if t.name == insideSmall {
		memory, disk := rows[1], rows[2]
		rows = append(rows, &series{name: nextToMemory(t.name), against: memory, samples: disk.samples})
	}
	return rows, nil
}

// insidePorts is the prelude with ports that are free on this host, whose network the yardstick has.
func insidePorts(ctx context.Context) (string, error) {
	postgres, err := freeport.Port(ctx)
	if err != nil {
		return "", err
	}
	redis, err := freeport.Port(ctx)
	return fmt.Sprintf(insidePrelude, redis, postgres), err
}

// insidePlaces builds the image, and opens the places, of which the first is the yardstick. On an error there are none:
// sandboxes end with the platform.
func insidePlaces(ctx context.Context, p *testkit.Platform, c *client.Client, dir string) (places []workplace, err error) {
	b := &builds{p: p, c: c, dir: dir}
	source := filepath.Join(dir, insideImage)
	if err := b.write(source, insideDockerfile); err != nil {
		return nil, err
	}
	out, err := b.build(ctx, c, insideImage, source, false)
	if err != nil {
		return nil, fmt.Errorf("build the image: %w", err)
	}
	for _, s := range []struct {
		name    string
		storage doze.Megabytes
	}{{"memory", 0}, {"disk", insideStorage}} {
		_, agent, err := testkit.Make(ctx, c, s.name, doze.Runtime{Image: out.image, Memory: insideMemory, Storage: s.storage})
		if err != nil {
			return nil, fmt.Errorf("a sandbox with its files in %s: %w", s.name, err)
		}
		run := func(ctx context.Context, script string) (string, error) {
			ran, err := agent.Start(ctx, client.Command{Command: "exec bash -c '" + strings.ReplaceAll(script, "'", `'\''`) + "'", Wait: true, WorkingDir: "/"})
			if err == nil && ran.ExitCode != 0 {
				err = fmt.Errorf("exit code %d: %.1000s", ran.ExitCode, ran.Stderr)
			}
			return ran.Stdout, err
		}
		places = append(places, workplace{name: s.name, run: run, ends: func() error { return nil }})
	}
	uid, err := p.UID("memory")
	if err != nil {
		return nil, err
	}
	root, err := recordedRoot(filepath.Join(p.Data, "sandboxes", uid, "record.json"))
	if err != nil {
		return nil, err
	}
	own, err := openChroot(root, filepath.Join(dir, "chroot"))
	if err != nil {
		return nil, fmt.Errorf("a chroot of %s: %w", root, err)
	}
	return append([]workplace{own}, places...), nil
}

// recordedRoot returns the root file system in the record of a sandbox.
func recordedRoot(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var record struct {
		Config struct{ Root string }
	}
	return record.Config.Root, json.Unmarshal(raw, &record)
}

// openChroot has processes of this host's kernel in an image: in a chroot, and with namespaces for all but
// the network. Its init ends with this process, and everything in it ends with its init.
func openChroot(image, dir string) (workplace, error) {
	hold := exec.Command("/bin/bash", "-c", "mount -t proc none /proc && exec cat") //nolint:noctx // its input ends it
	// This process has the only other end, so that it also ends if this one is killed.
	input, err := hold.StdinPipe()
	if err != nil {
		return workplace{}, err
	}
	said := &bytes.Buffer{}
	hold.Stderr = said
	root := filepath.Join(dir, "root")
	err = inNamespace(func() error {
		if err := mountChroot(image, dir, root); err != nil {
			return err
		}
		hold.Dir = "/"
		hold.SysProcAttr = &syscall.SysProcAttr{
			Chroot: root, Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		}
		return hold.Start()
	})
	if err != nil {
		return workplace{}, errors.Join(err, input.Close())
	}
	run := func(ctx context.Context, script string) (string, error) {
		cmd := exec.CommandContext(ctx, "nsenter", "--target", strconv.Itoa(hold.Process.Pid), "--mount", "--pid", "--ipc", "--uts", "--root", "--wd", "/bin/bash", "-c", script) //nolint:gosec // G204: scripts of our own
		cmd.Env = []string{"PATH=/usr/bin:/bin"}
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("%w: %.1000s%.1000s", err, stderr.String(), said.String())
		}
		return stdout.String(), nil
	}
	ends := func() error { return errors.Join(input.Close(), hold.Wait()) }
	return workplace{name: "native", run: run, ends: ends}, nil
}

// mountChroot lays a layer in memory over an image, with the devices that programs expect. It must run in a mount
// namespace of its own.
func mountChroot(image, dir, root string) error {
	lower, layer := filepath.Join(dir, "image"), filepath.Join(dir, "layer")
	upper, work := filepath.Join(layer, "upper"), filepath.Join(layer, "work")
	for _, d := range []string{lower, layer, root} {
		if err := os.MkdirAll(d, 0o755); err != nil { //nolint:gosec // G301: the root of users that are not root
			return err
		}
	}
	if out, err := exec.Command("mount", "-t", "erofs", "-o", "loop,ro", image, lower).CombinedOutput(); err != nil { //nolint:gosec,noctx // G204: files of our own; it does not wait
		return fmt.Errorf("mount %s: %w: %s", image, err, out)
	}
	if err := unix.Mount("tmpfs", layer, "tmpfs", 0, "mode=0755,"+insideFiles); err != nil {
		return err
	}
	if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755)); err != nil { //nolint:gosec // G301: as above
		return err
	}
	if err := unix.Mount("overlay", root, "overlay", 0, "lowerdir="+lower+",upperdir="+upper+",workdir="+work); err != nil {
		return err
	}
	dev := filepath.Join(root, "dev")
	if err := unix.Mount("tmpfs", dev, "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	defer unix.Umask(unix.Umask(0))
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9} {
		const memory = 1                                                                                                 // the major number of all of them
		if err := unix.Mknod(filepath.Join(dev, name), unix.S_IFCHR|0o666, int(unix.Mkdev(memory, minor))); err != nil { //nolint:gosec // G115: small numbers
			return err
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dev, "shm"), 0o1777), os.Chmod(filepath.Join(dev, "shm"), 0o1777), os.Symlink("/proc/self/fd", filepath.Join(dev, "fd"))); err != nil { //nolint:gosec // G301: as on every host
		return err
	}
	// The names of this host, in files of the layer: a link in the image would lead out of it.
	for _, name := range []string{"/etc/resolv.conf", "/etc/hosts"} {
		text, err := os.ReadFile(name)
		if err == nil {
			err = os.RemoveAll(root + name)
		}
		if err == nil {
			err = os.WriteFile(root+name, text, 0o644) //nolint:gosec // G306: everyone inside reads them
		}
		if err != nil {
			return err
		}
	}
	return nil
}
