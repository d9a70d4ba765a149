package e2e_test

import (
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

// TestKernelFiles asks for what the links of /proc lead to in a real sandbox,
// whose kernel follows them even when it is told not to.
func TestKernelFiles(t *testing.T) {
	t.Parallel()
	p, c := start(t)
	volume(t, c, "precious", "")
	sb, agent := create(t, c, having("kernel", doze.VolumeAttachment{Name: "precious", MountPath: "/srv/volume"}))
	url := sb.Metadata.URL
	sh(t, agent, "mkdir -p /tmp/tree /srv/volume/dir && touch /root/kept /srv/volume/kept /srv/volume/dir/gone /tmp/tree/gone && ln -s /proc /tmp/tree/proc && ln -s /proc/self/root /tmp/tree/root")
	for _, test := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"DELETE", "/filesystem//proc/self/root?recursive=true", "", 422, "the kernel's"},
		{"DELETE", "/filesystem//proc/1/root/?recursive=true", "", 422, "the kernel's"},
		{"DELETE", "/filesystem/tree/proc/1/task/1/cwd?recursive=true", "", 422, "the kernel's"},
		{"DELETE", "/filesystem//tmp/tree/proc/self/root?recursive=true", "", 422, "the kernel's"},
		{"DELETE", "/filesystem//proc?recursive=true", "", 422, "is a mount point"},
		{"DELETE", "/filesystem//sys?recursive=true", "", 422, "is a mount point"},
		{"DELETE", "/filesystem//srv?recursive=true", "", 422, "/srv/volume is a mount point"},
		{"POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fsDeleteFileOrDirectory","arguments":{"path":"/proc/self/root","recursive":true}}}`, 200, "the kernel's"},
		{"DELETE", "/filesystem//tmp/tree?recursive=true", "", 200, "deleted"},
		{"DELETE", "/filesystem//srv/volume/dir?recursive=true", "", 200, "deleted"},
		{"PUT", "/filesystem/tree/proc", `{"files":{"self/root/root/escaped":"1"}}`, 422, "the kernel's"},
		{"GET", "/filesystem//proc/self/mem", "", 422, "/proc/self/mem"},
	} {
		a := call{method: test.method, url: url + test.path, body: test.body}.want(t, p, test.status)
		if !strings.Contains(a.body, test.want) {
			t.Errorf("%s %s: %s, want %q", test.method, test.path, a.body, test.want)
		}
	}
	if got := sh(t, agent, "ls /root/kept /srv/volume/* /root/escaped /tmp/tree 2>&1 | grep -v 'No such'"); got != "/root/kept\n/srv/volume/kept" {
		t.Errorf("left is %q", got)
	}
}
