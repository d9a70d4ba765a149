package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// engines are the packages of docker and podman, with those of their libraries that the
// base image does not have, and a program to run in containers.
var engines = []string{
	"docker.io", "containerd", "runc", "busybox-static", "libdevmapper1.02.1", "dmsetup",
	"podman", "conmon", "crun", "golang-github-containers-common", "golang-github-containers-image", "libgpgme11", "libassuan0",
	"libsubid4", "libyajl2", "libglib2.0-0",
}

// download returns the files of packages of the host's Debian.
func download(t *testing.T, names ...string) []string {
	t.Helper()
	dir := t.TempDir()
	download := exec.CommandContext(t.Context(), "apt-get", append([]string{"download", "-qq", "-o", "APT::Sandbox::User=root"}, names...)...)
	download.Dir = dir
	if out, err := download.CombinedOutput(); err != nil {
		t.Fatalf("apt-get download: %v: does apt-get update help?\n%s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(files) != len(names) {
		t.Fatalf("%d of %d packages: %v", len(files), len(names), err)
	}
	return files
}

// packages installs packages of the host's Debian in a sandbox, without what they depend on.
func packages(t *testing.T, agent *client.Agent, names ...string) {
	t.Helper()
	install(t, agent, "dpkg -i --force-depends --force-unsafe-io /var/tmp/packages/*.deb", download(t, names...))
}

// unpacked has dpkg remember nothing of packages, which takes a third of the time.
const unpacked = "for f in /var/tmp/packages/*.deb; do dpkg-deb --fsys-tarfile $f | tar -x -C / --keep-directory-symlink || exit; done"

// install puts packages into a sandbox, and runs a command for them.
func install(t *testing.T, agent *client.Agent, command string, files []string) {
	t.Helper()
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		_, err = agent.WriteFile(t.Context(), "/var/tmp/packages/"+filepath.Base(name), file, "")
		if _ = file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	sh(t, agent, "("+command+") >/var/tmp/dpkg.log 2>&1 || { tail -20 /var/tmp/dpkg.log; exit 1; }; rm -r /var/tmp/packages")
}

// dockerd starts the daemon of docker as the documentation says.
const dockerd = "exec dockerd --iptables=false --ip6tables=false --bridge=none"

// storage has podman copy files, as the documentation says.
const storage = `[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
`

// tally counts in a file, in a container.
const tally = `i=0; while :; do i=$((i+1)); echo $i > /count; sleep 0.1; done`

// TestContainers: docker and podman build and run in a sandbox that is for them, and go on
// after a sleep on disk. In another one, a failure says what to ask for.
func TestContainers(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "2s", "--save-after", "200ms", "--disk-after", "3s", "--swap", "off")
	sb := extra("engines", doze.ExtraContainers)
	sb.Spec.Runtime.Memory = 3072
	_, agent := create(t, c, sb)
	files := download(t, engines...)
	install(t, agent, unpacked, files)
	daemon := spawn(t, agent, client.Command{Command: dockerd, Name: "dockerd", KeepAlive: false})
	until(t, "an answer of dockerd", func() bool {
		if now, err := agent.Process(t.Context(), daemon.PID); err != nil || now.Status != "running" {
			t.Fatalf("dockerd: %+v %v", now, err)
		}
		return sh(t, agent, "docker info >/dev/null 2>&1 && echo yes || true") == "yes"
	})

	put(t, agent, "/etc/containers/storage.conf", storage)
	put(t, agent, "/etc/containers/containers.conf", "[engine]\nruntime = \"runc\"\n")

	// An image of one program, since there is no registry here.
	sh(t, agent, "mkdir -p /root/image/bin && cp /bin/busybox /root/image/bin/ && cd /root/image && for n in sh sleep cat echo; do ln -s busybox bin/$n; done")
	sh(t, agent, "tar -C /root/image -c . | docker import - box && tar -C /root/image -c . | podman import - box")
	if got := sh(t, agent, "docker run --rm --network host box /bin/echo from docker"); got != "from docker" {
		t.Errorf("docker run: %q", got)
	}
	if got := sh(t, agent, "podman run --rm --network host box /bin/echo from podman"); got != "from podman" {
		t.Errorf("podman run: %q", got)
	}
	put(t, agent, "/root/built/Dockerfile", "FROM box\nRUN /bin/echo made in a step > /made\nCMD [\"/bin/cat\", \"/made\"]\n")
	sh(t, agent, "DOCKER_BUILDKIT=0 docker build --network host -t built /root/built && podman build --network host -t built /root/built")
	for _, engine := range []string{"docker", "podman"} {
		if got := sh(t, agent, engine+" run --rm --network host built"); got != "made in a step" {
			t.Errorf("%s runs what it built: %q", engine, got)
		}
		sh(t, agent, engine+" run -d --network host --name counter box /bin/sh -c '"+tally+"'")
	}

	// A sleep on disk ends nothing of it.
	counted := map[string]string{}
	for _, engine := range []string{"docker", "podman"} {
		counted[engine] = sh(t, agent, engine+" exec counter /bin/cat /count")
	}
	awaitTier(t, p, "engines", "disk")
	for engine, before := range counted {
		until(t, engine+" counts on", func() bool {
			now := sh(t, agent, engine+" exec counter /bin/cat /count")
			return len(now) > len(before) || len(now) == len(before) && now > before
		})
		sh(t, agent, engine+" rm -f counter")
	}
	if got := sh(t, agent, "docker run --rm --network host box /bin/echo after a sleep"); got != "after a sleep" {
		t.Errorf("docker run after a sleep: %q", got)
	}

	plain := named("plain", 3072)
	_, agent = create(t, c, plain)
	install(t, agent, unpacked, files)
	put(t, agent, "/etc/containers/storage.conf", storage)
	sh(t, agent, "mkdir -p /root/image/bin && cp /bin/busybox /root/image/bin/echo && tar -C /root/image -c . | podman import - box")
	for _, command := range []string{dockerd, "podman run --rm --network host box /bin/echo"} {
		got, err := agent.Start(t.Context(), client.Command{Command: command, Wait: true})
		if err != nil {
			t.Fatal(err)
		}
		if got.ExitCode == 0 || !strings.Contains(got.Stderr, "extraArgs.containers: enabled") {
			t.Errorf("%s: exit code %d, %s", command, got.ExitCode, got.Stderr)
		}
	}
}
