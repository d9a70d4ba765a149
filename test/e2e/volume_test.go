package e2e_test

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// volume makes one of 64 MB.
func volume(t *testing.T, c *client.Client, name, template string) {
	t.Helper()
	v := doze.Volume{Metadata: doze.Metadata{Name: name}, Spec: doze.VolumeSpec{Size: 64, Template: template}}
	if _, err := c.CreateVolume(t.Context(), v); err != nil {
		t.Fatal(err)
	}
}

// having is a small sandbox with volumes.
func having(name string, volumes ...doze.VolumeAttachment) doze.Sandbox {
	sb := named(name, 512)
	sb.Spec.Volumes = volumes
	return sb
}

// part deletes a sandbox and waits until its volumes are free.
func part(t *testing.T, c *client.Client, name string, volumes ...string) {
	t.Helper()
	if _, err := c.Delete(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	for _, v := range volumes {
		until(t, "the volume is free", func() bool {
			got, err := c.Volume(t.Context(), v)
			if err != nil {
				t.Fatal(err)
			}
			return got.State.AttachedTo == ""
		})
	}
}

// room is how many megabytes a guest sees of a volume.
func room(t *testing.T, agent *client.Agent, path string) float64 {
	t.Helper()
	return number(t, sh(t, agent, "df -m --output=size "+path+" | tail -1"))
}

// TestVolumes writes into volumes, and finds what was written in the next
// sandbox and after each kind of sleep.
func TestVolumes(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "60s")
	create(t, c, named("plain", 512))
	volume(t, c, "kept", "")
	_, agent := create(t, c, having("one", doze.VolumeAttachment{Name: "kept", MountPath: "/data/kept"},
		doze.VolumeAttachment{Name: "scratch", MountPath: "/scratch", Type: doze.VolumeEphemeral, SizeMB: 32}))
	if n := room(t, agent, "/data/kept"); n < 40 || n > 64 {
		t.Errorf("of 64 MB it sees %v", n)
	}
	if got := sh(t, agent, "mountpoint -q /data/kept && mountpoint -q /scratch && ls -A /data/kept /scratch | wc -w"); got != "2" {
		t.Errorf("two empty mount points have %s words", got)
	}
	put(t, agent, "/data/kept/state", "first")
	if got := sh(t, agent, "dd if=/dev/zero of=/data/kept/large bs=1M 2>&1 | grep -o 'No space left' ; rm /data/kept/large"); got != "No space left" {
		t.Errorf("a full volume says %q", got)
	}
	for what, err := range map[string]error{
		"a second sandbox": func() error {
			_, err := c.Create(t.Context(), having("two", doze.VolumeAttachment{Name: "kept", MountPath: "/data"}), false)
			return err
		}(),
		"deleting it": c.DeleteVolume(t.Context(), "kept"),
		"a snapshot":  func() error { _, err := c.CreateSnapshot(t.Context(), "one", ""); return err }(),
	} {
		if kind(err) != doze.Conflict {
			t.Errorf("%s: %v", what, err)
		}
	}
	grown, err := c.UpdateVolume(t.Context(), doze.Volume{Metadata: doze.Metadata{Name: "kept"}, Spec: doze.VolumeSpec{Size: 128}})
	if n := len(grown.Events); err != nil || grown.Spec.Size != 128 || n == 0 || !strings.Contains(grown.Events[n-1].Message, "sandbox:one sees that on its next machine") {
		t.Errorf("%+v, %v", grown, err)
	}
	if n := room(t, agent, "/data/kept"); n < 40 || n > 64 { // it is larger for who gets it next
		t.Errorf("where it is attached, it sees %v MB", n)
	}
	volume(t, c, "other", "")
	create(t, c, having("beside", doze.VolumeAttachment{Name: "other", MountPath: "/data"})) // it holds nothing of what ends
	part(t, c, "one", "kept")
	until(t, "only one disk is in use", func() bool { return devices(t, p) == 1 })

	_, agent = create(t, c, having("two", doze.VolumeAttachment{Name: "kept", MountPath: "/other", ReadOnly: true}))
	if got := sh(t, agent, "cat /other/state; for do in 'touch /other/x' 'rm /other/state' 'mount -o remount,rw /other' 'chmod 777 /other/state'; do sh -c \"$do\" 2>/dev/null && echo $do; done; true"); got != "first" {
		t.Errorf("a read-only volume allows %q", got)
	}
	if n := room(t, agent, "/other"); n < 100 || n > 128 {
		t.Errorf("of 128 MB it sees %v", n)
	}
	part(t, c, "two", "kept")
	if err := c.DeleteVolume(t.Context(), "kept"); err != nil {
		t.Error(err)
	}
	until(t, "its disk is gone", func() bool { return len(disks(t, p)) == 1 })
}

// devices is how many disks of volumes the kernel has open.
func devices(t *testing.T, p *testkit.Platform) (n int) {
	t.Helper()
	names, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if backing, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(backing), p.Data) { // or it is gone by now
			n++
		}
	}
	return n
}

// TestVolumesArchive has a volume stay while its sandbox is in an archive, and
// free again after dozed was killed while such a sandbox was made.
func TestVolumesArchive(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "60s")
	volume(t, c, "v", "")
	attached := doze.VolumeAttachment{Name: "v", MountPath: "/v"}
	sb, agent := create(t, c, having("a", attached))
	sh(t, agent, "echo volume >/v/state; echo root >/root/state")
	if _, err := c.Archive(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	becomes := func(status string) {
		t.Helper()
		until(t, "it is "+status, func() bool {
			sb, err := c.Sandbox(t.Context(), sb.Metadata.Name)
			return err == nil && sb.Status == status
		})
	}
	becomes("ARCHIVED")
	until(t, "no disk is in use", func() bool { return devices(t, p) == 0 })
	if _, err := c.Create(t.Context(), having("b", attached), false); kind(err) != doze.Conflict {
		t.Errorf("it is not kept for the archive: %v", err)
	}
	if _, err := c.Unarchive(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	becomes("DEPLOYED")
	if got := sh(t, agent, "cat /v/state /root/state"); got != "volume\nroot" {
		t.Errorf("out of the archive there are %q", got)
	}
	part(t, c, "a", "v")

	answered := make(chan error, 1)
	go func() { // ends with dozed
		_, err := c.Create(context.WithoutCancel(t.Context()), having("half", attached), false)
		answered <- err
	}()
	until(t, "the volume is mounted", func() bool { return devices(t, p) == 1 })
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	t.Logf("the caller was told: %v", <-answered)
	revive(t, p)
	if sb, err := c.Sandbox(t.Context(), "half"); err == nil && sb.Status == "DEPLOYED" { // it was quicker
		part(t, c, "half", "v")
	}
	until(t, "the volume is free", func() bool {
		v, err := c.Volume(t.Context(), "v")
		return err == nil && v.State.AttachedTo == "" && devices(t, p) == 0
	})
	_, agent = create(t, c, having("next", attached))
	if got := sh(t, agent, "cat /v/state"); got != "volume" {
		t.Errorf("the next one reads %q", got)
	}
}

// disks are the files of volumes.
func disks(t *testing.T, p *testkit.Platform) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(p.Data, "volumes", "images", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestVolumesSleep has files open in a volume, one of them without a name, while
// the sandbox sleeps on disk, dozed is killed, and the host restarts.
func TestVolumesSleep(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "200ms", "--save-after", "0s", "--disk-after", "400ms", "--ready", "0")
	volume(t, c, "v", "")
	sb, agent := create(t, c, having("a", doze.VolumeAttachment{Name: "v", MountPath: "/v"},
		doze.VolumeAttachment{Name: "e", MountPath: "/e", Type: doze.VolumeEphemeral, SizeMB: 16}))
	sh(t, agent, "echo fleeting >/e/state")
	forever := 0
	spawn(t, agent, client.Command{Name: "writer", Timeout: &forever, Command: `exec 3>>/v/log 4<>/v/nameless; rm /v/nameless; echo held >&4
		i=0; while [ ! -e /v/stop ]; do i=$((i+1)); echo $i >&3; sleep 0.02; done; cat /proc/self/fd/4 >/v/found; echo done >/v/end`})
	lines := func() float64 { return number(t, sh(t, agent, "cat /v/log 2>/dev/null | wc -l")) } // it may have written nothing yet
	before := lines()
	for what, do := range map[string]func() error{
		"sleep": func() error { return nil },
		"kill":  func() error { err := p.Kill(); revive(t, p); return err },
		"boot":  func() error { err := p.Reboot(); revive(t, p); return err },
	} {
		awaitTier(t, p, sb.Metadata.Name, "disk")
		if err := do(); err != nil {
			t.Fatal(what, err)
		}
		until(t, "after "+what+" it writes on", func() bool { return lines() > before })
		before = lines()
	}
	if got := sh(t, agent, "cat /e/state; touch /v/stop; while [ ! -e /v/end ]; do sleep 0.01; done; cat /v/found"); got != "fleeting\nheld" {
		t.Errorf("it found %q", got)
	}
	if got := sh(t, agent, "sort -n -c /v/log && tail -1 /v/log"); number(t, got) < before {
		t.Errorf("the log ends with %s", got)
	}
	part(t, c, "a", "v")
	until(t, "what ends with the sandbox is gone", func() bool { return len(disks(t, p)) == 1 })
}

// TestVolumeTemplate begins volumes with the files of an upload.
func TestVolumeTemplate(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "60s")
	pack := func(name, text string, kind byte) *bytes.Buffer {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		h := &tar.Header{Name: name, Typeflag: kind, Mode: 0o755, Linkname: text}
		if kind == tar.TypeReg {
			h.Size, h.Linkname = int64(len(text)), ""
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)[:h.Size]); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return &out
	}
	tmpl := doze.VolumeTemplate{Metadata: doze.Metadata{Name: "t"}, Spec: doze.VolumeTemplateSpec{DefaultSize: 32}}
	for name, archive := range map[string]*bytes.Buffer{
		"a link": pack("l", "/etc/shadow", tar.TypeSymlink), "a way out": pack("../../x", "text", tar.TypeReg), "no tar": bytes.NewBufferString(strings.Repeat("x", 4096)),
	} {
		if _, err := c.UploadVolumeTemplate(t.Context(), tmpl, "", archive); kind(err) != doze.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.UploadVolumeTemplate(t.Context(), tmpl, "", pack("large", strings.Repeat("x", 33<<20), tar.TypeReg)); kind(err) != doze.TooLarge {
		t.Errorf("what does not fit: %v", err)
	}
	if left := disks(t, p); len(left) != 0 {
		t.Errorf("left of bad uploads: %v", left)
	}
	for i := range 2 {
		got, err := c.UploadVolumeTemplate(t.Context(), tmpl, "", pack("bin/hello", "#!/bin/sh\necho version "+strconv.Itoa(i), tar.TypeReg))
		if err != nil || got.State.Status != "ready" {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	volume(t, c, "old", "t:5") // four uploads were refused
	volume(t, c, "new", "t")
	_, agent := create(t, c, having("a", doze.VolumeAttachment{Name: "old", MountPath: "/old"}, doze.VolumeAttachment{Name: "new", MountPath: "/new"}))
	if got := sh(t, agent, "/old/bin/hello; /new/bin/hello; echo changed >/old/bin/hello; stat -c %U:%a /new/bin/hello"); got != "version 0\nversion 1\nroot:755" {
		t.Errorf("it says %q", got)
	}
	if n := room(t, agent, "/new"); n < 40 {
		t.Errorf("of 64 MB it sees %v", n)
	}
	if err := c.DeleteVolumeTemplate(t.Context(), "t"); err != nil {
		t.Error(err)
	}
	until(t, "the disks of the template are gone", func() bool { return len(disks(t, p)) == 2 })
	if _, err := os.Stat("/x"); err == nil {
		t.Error("a file came out of the archive")
	}
}

// TestCLIVolumes drives volumes by the command line.
func TestCLIVolumes(t *testing.T) {
	t.Parallel()
	p, _ := start(t, "--pause-after", "60s")
	s := shell{t.TempDir()}
	s.ok(t, "doze", "login", "--address", p.Address, "--data", p.Data)
	files := t.TempDir()
	if err := os.WriteFile(filepath.Join(files, "greeting"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := s.ok(t, "doze", "volume", "template", "upload", "t", files, "--size", "32", "--version", "v1"); !strings.Contains(out, "v1") {
		t.Error(out)
	}
	s.ok(t, "doze", "volume", "create", "data", "--template", "t:v1")
	if out := s.ok(t, "doze", "volume", "resize", "data", "64"); !strings.Contains(out, "64") {
		t.Error(out)
	}
	s.ok(t, "doze", "sandbox", "create", "web", "--memory", "512", "--volume", "data:/data:ro", "--scratch", "/work:16")
	if out := s.ok(t, "doze", "sandbox", "exec", "web", "--", "cat /data/greeting; touch /data/x 2>/dev/null || echo ' refused'; touch /work/x"); out != "hello refused\n" {
		t.Errorf("it says %q", out)
	}
	if out := s.ok(t, "doze", "volume", "ls"); !strings.Contains(out, "sandbox:web") {
		t.Error(out)
	}
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"volume", "rm", "data"}, 4, "attached to sandbox:web"},
		{[]string{"volume", "resize", "data", "32"}, 2, "cannot become smaller"},
		{[]string{"volume", "resize", "data", "huge"}, 2, "number of megabytes"},
		{[]string{"volume", "template", "upload", "t", filepath.Join(files, "none")}, 1, "no such file"},
		{[]string{"sandbox", "create", "--volume", "data"}, 2, "NAME:PATH"},
		{[]string{"sandbox", "create", "--scratch", "/x"}, 2, "PATH:MEGABYTES"},
	} {
		if r := s.run(t, "", slices.Concat([]string{"doze"}, tt.args)...); r.code != tt.code || !strings.Contains(r.err, tt.says) {
			t.Errorf("%q: %+v", tt.args, r)
		}
	}
	s.ok(t, "doze", "sandbox", "rm", "web")
	until(t, "the volume can be deleted", func() bool { return s.run(t, "", "doze", "volume", "rm", "data").code == 0 })
	s.ok(t, "doze", "volume", "template", "rm", "t")
}
