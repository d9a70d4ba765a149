package main

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

const (
	// builtName is the image that is built.
	builtName = "baked"
	// buildTime bounds the build, with the first start of its builder.
	buildTime = 5 * time.Minute
	// builtFile is what its only step writes.
	builtFile, builtText = "/baked.txt", "baked once"
)

// shelves has each node keep images of its own. Those of the platform that other tests have made are
// linked.
func (f *fleet) shelves() error {
	found, _ := filepath.Glob(filepath.Join(testkit.Images, "images", "*.json")) // the pattern is well formed
	records := map[string][]byte{}
	for _, file := range found {
		raw, err := os.ReadFile(file)
		if err == nil && !bytes.Contains(raw, []byte(doze.BuiltPrefix)) { // a test that runs may have removed it
			records[file] = raw
		}
	}
	for _, name := range nodeNames() {
		dir := filepath.Join(f.data(name), "shelf")
		if err := os.MkdirAll(filepath.Join(dir, "images"), 0o755); err != nil { //nolint:gosec // G301: as the library makes it
			return err
		}
		for file, raw := range records {
			to := filepath.Join(dir, "images", filepath.Base(file))
			err := os.Link(strings.TrimSuffix(file, ".json")+".erofs", strings.TrimSuffix(to, ".json")+".erofs")
			if err == nil {
				err = os.WriteFile(to, raw, 0o644) //nolint:gosec // G306: as the library makes it
			}
			if err != nil {
				return err
			}
		}
		f.all[name].args = append(f.all[name].args, "--images-dir", dir)
	}
	return nil
}

// files returns a zip.
func files(all map[string]string) (*bytes.Buffer, error) {
	var raw bytes.Buffer
	w := zip.NewWriter(&raw)
	for name, text := range all {
		to, err := w.Create(name)
		if err != nil {
			return nil, err
		}
		if _, err := to.Write([]byte(text)); err != nil {
			return nil, err
		}
	}
	return &raw, w.Close()
}

// bake builds an image.
func (f *fleet) bake(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, buildTime)
	defer cancel()
	b, err := f.client.CreateBuild(ctx, doze.BuildRequest{Name: builtName})
	if err != nil {
		return err
	}
	archive, err := files(map[string]string{"Dockerfile": fmt.Sprintf("FROM blaxel/base-image\nRUN echo -n %q >%s\n", builtText, builtFile)})
	if err != nil {
		return err
	}
	if err := f.client.UploadBuild(ctx, b, archive); err != nil {
		return err
	}
	var log strings.Builder
	for e, err := range f.client.BuildLog(ctx, b.ID, true) {
		if err != nil {
			return fmt.Errorf("%w: %s", err, log.String())
		}
		fmt.Fprintln(&log, e.State, e.Name, e.Text)
	}
	if b, err = f.client.Build(ctx, b.ID); err == nil && b.Status != doze.BuildBuilt {
		err = fmt.Errorf("the build is %s: %s", b.Status, log.String())
	}
	return err
}

// baked begins a sandbox of the image, and sees that it has what was built.
func (f *fleet) baked(ctx context.Context, name string) error {
	sb, err := f.client.Create(ctx, doze.Sandbox{Metadata: doze.Metadata{Name: name}, Spec: doze.SandboxSpec{Runtime: doze.Runtime{Image: builtName, Memory: sandboxMB}}}, false)
	if err != nil {
		return err
	}
	agent, err := f.client.Agent(sb)
	if err != nil {
		return err
	}
	started, err := agent.Start(ctx, client.Command{Command: "cat " + builtFile})
	if err != nil {
		return err
	}
	return until(ctx, readyTime, func() error {
		logs, err := agent.Logs(ctx, started.PID)
		if err == nil && logs.Stdout != builtText {
			err = fmt.Errorf("%s has %q%s", name, logs.Stdout, logs.Stderr)
		}
		return err
	})
}

// images builds an image, loses its node, and has sandboxes begin of it elsewhere. A sandbox that was
// archived comes back there, too.
func images(ctx context.Context, dir string, say func(string)) (err error) {
	f, err := startApart(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	start := time.Now()
	if err := f.bake(ctx); err != nil {
		return err
	}
	say(fmt.Sprintf("the image is built after %s", time.Since(start).Round(time.Millisecond)))
	start = time.Now()
	err = until(ctx, saveTime, func() error {
		found, _ := filepath.Glob(filepath.Join(f.dir, "objects", "checkpoints", "image-*", "m", "*")) // the pattern is well formed
		if len(found) == 0 {
			return errors.New("the image is not in the bucket")
		}
		return nil
	})
	if err != nil {
		return err
	}
	say(fmt.Sprintf("the image is in the bucket after %s", time.Since(start).Round(time.Millisecond)))
	if err := f.baked(ctx, "near"); err != nil {
		return err
	}
	had := f.holder("near")
	p, err := f.pack(ctx)
	if err != nil {
		return err
	}
	if err := f.ask(ctx, http.MethodPost, "/platform/nodes/"+f.ids[had]+"/cordon", nil); err != nil {
		return err
	}
	start = time.Now()
	if err := f.baked(ctx, "cordoned"); err != nil {
		return err
	}
	at := f.holder("cordoned")
	if at == had {
		return fmt.Errorf("a sandbox is on %s, which takes none", at)
	}
	say(fmt.Sprintf("a sandbox of the image is on %s after %s, its node %s takes none", at, time.Since(start).Round(time.Millisecond), had))
	lose := []string{at, had} // the last node never had the image
	if !slices.Contains(lose, p.had) {
		lose[0] = p.had
	}
	for _, name := range lose {
		if err := f.killNode(name); err != nil {
			return err
		}
	}
	start = time.Now()
	err = until(ctx, lossTime, func() error { return f.baked(ctx, fmt.Sprintf("far-%d", time.Now().UnixNano())) })
	if err != nil {
		return err
	}
	say(fmt.Sprintf("a sandbox of the image answers on the last node %s after the loss of both others", time.Since(start).Round(time.Millisecond)))
	start = time.Now()
	if err := f.unpack(ctx, p); err != nil {
		return err
	}
	say(fmt.Sprintf("what was archived on %s is back on %s %s after that", p.had, f.holder(p.name), time.Since(start).Round(time.Millisecond)))
	return nil
}

// packed is an archived sandbox.
type packed struct {
	name, had, text string
}

// pack archives a sandbox with a file, and waits until the bucket has the archive.
func (f *fleet) pack(ctx context.Context) (p packed, err error) {
	p = packed{name: "packed", text: "kept in its archive"}
	sb, err := f.client.Create(ctx, doze.Sandbox{Metadata: doze.Metadata{Name: p.name}, Spec: doze.SandboxSpec{Runtime: doze.Runtime{Memory: sandboxMB}}}, false)
	if err != nil {
		return p, err
	}
	agent, err := f.client.Agent(sb)
	if err != nil {
		return p, err
	}
	if _, err := agent.WriteFile(ctx, "/kept.txt", strings.NewReader(p.text), "0644"); err != nil {
		return p, err
	}
	p.had = f.holder(p.name)
	if err := f.post(ctx, http.MethodPost, "/sandboxes/"+p.name+"/archive", "", nil); err != nil {
		return p, err
	}
	return p, until(ctx, saveTime, func() error {
		var record struct {
			Archived bool
			Copied   time.Time
		}
		raw, err := os.ReadFile(filepath.Join(f.data(p.had), "sandboxes", f.has(p.had)[p.name], "record.json"))
		if err == nil {
			err = json.Unmarshal(raw, &record)
		}
		if err == nil && (!record.Archived || record.Copied.IsZero()) {
			err = fmt.Errorf("the archive is not in the bucket: %+v", record)
		}
		return err
	})
}

// unpack has an archived sandbox back, and sees that it has its file. Its node may be lost just now.
func (f *fleet) unpack(ctx context.Context, p packed) error {
	err := until(ctx, lossTime, func() error {
		if now, err := f.client.Sandbox(ctx, p.name); err != nil || now.Status == doze.Running.Status() {
			return err
		}
		_ = f.post(ctx, http.MethodPost, "/sandboxes/"+p.name+"/unarchive", "", nil) // asked again until it works
		return errors.New("it is in its archive still")
	})
	if err != nil {
		return err
	}
	sb, err := f.client.Sandbox(ctx, p.name)
	if err != nil {
		return err
	}
	agent, err := f.client.Agent(sb)
	if err != nil {
		return err
	}
	started, err := agent.Start(ctx, client.Command{Command: "cat /kept.txt"})
	if err != nil {
		return err
	}
	return until(ctx, readyTime, func() error {
		logs, err := agent.Logs(ctx, started.PID)
		if err == nil && logs.Stdout != p.text {
			err = fmt.Errorf("it has %q%s", logs.Stdout, logs.Stderr)
		}
		return err
	})
}
