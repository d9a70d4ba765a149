// Package etc keeps the files of an image true that name the sandbox, its resolver
// and the authorities that it trusts.
package etc

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/environ"
)

// etcMax bounds a file that we change a name in. They have a few lines.
const etcMax = 1 << 20

// nameservers returns the content of resolv.conf. Without a word of the host
// it is the first hop, which decides what is answered.
func nameservers(root string, env []string) string {
	if list := environ.List(env).Get(environ.Nameservers); list != "" {
		return "nameserver " + strings.ReplaceAll(list, ",", "\nnameserver ") + "\n"
	}
	return "nameserver " + gateway(filepath.Join(root, "proc/net/route")) + "\n"
}

// hosts are the names that every image must resolve.
const hosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

// Prepare makes a minimal image usable: it creates the directories and files
// below root that every program expects. All of it is best effort: the root may be
// read-only.
func Prepare(root string, env environ.List) {
	prepareRoot(root, Hostname(), nameservers(root, env))
	if _, err := os.Stat(filepath.Join(root, doze.TrustFile)); err != nil {
		_ = writeBundle(root, "") // before the machine is anybody's, so that Trust has little to do
	}
}

func prepareRoot(root, host, resolv string) {
	for _, d := range []struct {
		name string
		mode os.FileMode
	}{
		{"tmp", 0o777 | os.ModeSticky}, {"run", 0o755}, {"var/log", 0o755}, {"etc", 0o755},
	} {
		dir := filepath.Join(root, d.name)
		if _, err := os.Stat(dir); err != nil && os.MkdirAll(dir, 0o755) == nil { //nolint:gosec // every user of the image needs these
			_ = os.Chmod(dir, d.mode) // past the umask
		}
	}
	fillIn(filepath.Join(root, "etc/hostname"), host+"\n")
	fillIn(filepath.Join(root, "etc/hosts"), hosts)
	nameSelf(filepath.Join(root, "etc/hosts"), host)
	fillIn(filepath.Join(root, "etc/resolv.conf"), resolv)
}

// fillIn writes a file that is absent or empty.
func fillIn(name, content string) {
	if info, err := os.Stat(name); err == nil && info.Size() > 0 {
		return
	}
	_ = os.WriteFile(name, []byte(content), 0o644) //nolint:gosec // every user of the image reads these
}

// nameSelf makes the sandbox's own name known, which nobody else answers for.
func nameSelf(name, host string) {
	b, err := os.ReadFile(name)
	if err != nil || slices.Contains(strings.Fields(string(b)), host) {
		return
	}
	if len(b) > 0 && b[len(b)-1] != '\n' {
		b = append(b, '\n')
	}
	_ = os.WriteFile(name, append(b, selfLine(host)...), 0o644) //nolint:gosec // every user of the image reads it
}

// selfLine is the sandbox's own name in a file of hosts.
func selfLine(host string) string { return "127.0.1.1\t" + host + "\n" }

// replaceIn replaces one text of a file by another. A file without it stays as
// it is, and so does one that is none.
func replaceIn(name, old, now string) {
	info, err := os.Lstat(name)
	if old == now || err != nil || !info.Mode().IsRegular() || info.Size() > etcMax {
		return
	}
	b, err := os.ReadFile(name)
	if err != nil || !strings.Contains(string(b), old) {
		return
	}
	_ = os.WriteFile(name, []byte(strings.Replace(string(b), old, now, 1)), info.Mode().Perm()) //nolint:gosec // G703: a file below our own root; best effort, as all of it
}

// gateway returns the address of the default route, 127.0.0.1 without one.
func gateway(table string) string {
	b, _ := os.ReadFile(table) // without it there is no route
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 2 && f[1] == "00000000" {
			var word uint32
			if _, err := fmt.Sscanf(f[2], "%X", &word); err == nil && word != 0 {
				return fmt.Sprintf("%d.%d.%d.%d", word&math.MaxUint8, word>>8&math.MaxUint8, word>>16&math.MaxUint8, word>>24)
			}
		}
	}
	return "127.0.0.1"
}
