package main

import (
	"bytes"
	"context"
	_ "embed" // for what runs in the sandbox
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

//go:embed ledger.py
var ledgerScript []byte

const (
	// volumeName and volumeMB are of the volume that travels.
	volumeName = "ledger"
	volumeMB   = 256
	// visitsEach is how often a ledger is added to between two journeys.
	visitsEach = 5
	// saveTime bounds the time until the bucket has a volume that is free.
	saveTime = 2 * time.Minute
)

// counted is what a ledger answers.
type counted struct {
	Born                    string
	Memory, Volume, Passing int
	Whole                   bool
}

// post makes a call of the API with a body, and decodes the answer into out.
func (f *fleet) post(ctx context.Context, method, path, body string, out any) error {
	r, err := http.NewRequestWithContext(ctx, method, f.url()+"/v0"+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+f.key)
	r.Header.Set("Content-Type", "application/json")
	resp, err := f.http.Do(r)
	if err != nil {
		return err
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s %s: %s: %.500s", method, path, resp.Status, raw)
	}
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(raw, out)
}

// ledger makes a sandbox with the volume, and starts its process.
func (f *fleet) ledger(ctx context.Context, name string) (*witness, error) {
	sb, err := f.client.Create(ctx, doze.Sandbox{Metadata: doze.Metadata{Name: name}, Spec: doze.SandboxSpec{
		Runtime: doze.Runtime{Memory: sandboxMB},
		Volumes: []doze.VolumeAttachment{{Name: volumeName, MountPath: "/data"}, {Name: "scratch", MountPath: "/scratch", Type: doze.VolumeEphemeral, SizeMB: 64}},
	}}, false)
	if err != nil {
		return nil, err
	}
	agent, err := f.client.Agent(sb)
	if err != nil {
		return nil, err
	}
	if _, err := agent.WriteFile(ctx, "/ledger.py", bytes.NewReader(ledgerScript), "0644"); err != nil {
		return nil, err
	}
	started, err := agent.Start(ctx, client.Command{Command: "exec python3 /ledger.py"})
	if err != nil {
		return nil, err
	}
	return &witness{name: name, url: portOf(sb)}, until(ctx, readyTime, func() error {
		logs, err := agent.Logs(ctx, started.PID)
		if err == nil && logs.Stdout != "ready\n" {
			err = fmt.Errorf("%s is not ready: %s%s", name, logs.Stdout, logs.Stderr)
		}
		return err
	})
}

// portOf is the address of the server in a sandbox.
func portOf(sb doze.Sandbox) string { return strings.TrimRight(sb.Metadata.URL, "/") + "/port/9000" }

// fill writes megabytes that nothing can compress into the volume of a ledger.
func (f *fleet) fill(ctx context.Context, w *witness, megabytes int) error {
	sb, err := f.client.Sandbox(ctx, w.name)
	if err != nil || megabytes == 0 {
		return err
	}
	agent, err := f.client.Agent(sb)
	if err != nil {
		return err
	}
	started, err := agent.Start(ctx, client.Command{Command: fmt.Sprintf("head -c %dM /dev/urandom >/data/bulk && sync && echo ready", megabytes)})
	if err != nil {
		return err
	}
	return until(ctx, lossTime, func() error {
		logs, err := agent.Logs(ctx, started.PID)
		if err == nil && logs.Stdout != "ready\n" {
			err = fmt.Errorf("the volume is not full: %s%s", logs.Stdout, logs.Stderr)
		}
		return err
	})
}

// count asks a ledger, and adds to it if word is add.
func (f *fleet) count(ctx context.Context, w *witness, word string) (c counted, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/"+word, nil)
	if err != nil {
		return c, err
	}
	r.Header.Set("Authorization", "Bearer "+f.key)
	resp, err := f.http.Do(r)
	if err != nil {
		return c, err
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return c, err
	}
	if resp.StatusCode != http.StatusOK {
		return c, fmt.Errorf("%s: %.300s", resp.Status, raw)
	}
	return c, json.Unmarshal(raw, &c)
}

// on are the nodes that have the file of a disk.
func (f *fleet) on(disk string) (names []string) {
	for _, name := range nodeNames() {
		if found, _ := filepath.Glob(filepath.Join(f.data(name), "volumes", "images", disk+".img")); len(found) > 0 { // the pattern is well formed
			names = append(names, name)
		}
	}
	return names
}

// diskOf is the id of the only volume that is no scratch disk.
func (f *fleet) diskOf() (string, error) {
	for _, name := range nodeNames() {
		found, _ := filepath.Glob(filepath.Join(f.data(name), "volumes", "images", "*.img")) // the pattern is well formed
		for _, file := range found {
			if id := strings.TrimSuffix(filepath.Base(file), ".img"); !strings.Contains(id, "-") {
				return id, nil
			}
		}
	}
	return "", errors.New("no node has the volume")
}

// holder is the node that has a sandbox.
func (f *fleet) holder(sandbox string) string {
	for _, name := range nodeNames() {
		if p := f.all[name]; p.runs() && f.has(name)[sandbox] != "" {
			return name
		}
	}
	return ""
}

// other is a node that is not one of some.
func other(not ...string) string {
	for _, name := range nodeNames() {
		if !strings.Contains(strings.Join(not, " "), name) {
			return name
		}
	}
	return ""
}

// A journey is a sandbox with a volume on its way.
type journey struct {
	f    *fleet
	w    *witness
	last counted
	say  func(string)
}

// add adds to the ledger, and sees that all of its places agree.
func (j *journey) add(ctx context.Context) (err error) {
	for range visitsEach {
		if j.last, err = j.f.count(ctx, j.w, "add"); err != nil {
			return err
		}
	}
	return j.agree(ctx)
}

func (j *journey) agree(ctx context.Context) error {
	c, err := j.f.count(ctx, j.w, "")
	if err == nil && (c.Memory != c.Volume || c.Memory != c.Passing || !c.Whole) {
		err = fmt.Errorf("memory and volumes are not of one moment: %+v", c)
	}
	j.last = c
	return err
}

// went is what must hold after a journey: nothing is lost, and one node has the volume.
func (j *journey) went(ctx context.Context, disk, what string) error {
	was := j.last
	start := time.Now()
	if err := j.agree(ctx); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if j.last != was {
		return fmt.Errorf("%s: it was %+v, and is %+v", what, was, j.last)
	}
	at := j.f.holder(j.w.name)
	if on := j.f.on(disk); len(on) != 1 || on[0] != at {
		return fmt.Errorf("%s: the sandbox is on %q, its volume on %q", what, at, on)
	}
	j.say(fmt.Sprintf("%s: %+v on %s, answered after %s", what, j.last, at, time.Since(start).Round(time.Millisecond)))
	return j.add(ctx)
}

// volumes has a volume go from node to node: with its sandbox, after the loss of a node, and
// from one sandbox to another.
func volumes(ctx context.Context, dir string, fill int, say func(string)) (err error) {
	f, err := start(ctx, dir, "--pause-after", "2s", "--save-after", "0", "--disk-after", diskAfter, "--remote-after", copyAfter)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	if err := f.post(ctx, http.MethodPost, "/volumes", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"size":%d}}`, volumeName, volumeMB+2*fill), nil); err != nil {
		return err
	}
	disk, err := f.diskOf()
	if err != nil {
		return err
	}
	w, err := f.ledger(ctx, "ledger-1")
	if err != nil {
		return err
	}
	j := &journey{f: f, w: w, say: say}
	if err := f.fill(ctx, w, fill); err != nil {
		return err
	}
	if err := j.add(ctx); err != nil {
		return err
	}
	if err := j.moves(ctx, disk); err != nil {
		return err
	}
	if err := j.bare(ctx, disk); err != nil {
		return err
	}
	if err := j.loss(ctx, disk); err != nil {
		return err
	}
	return j.handOver(ctx, disk)
}

// moves has the sandbox go to another node and back.
func (j *journey) moves(ctx context.Context, disk string) error {
	first := j.f.holder(j.w.name)
	for _, to := range []string{other(first), first} {
		start := time.Now()
		if err := j.f.post(ctx, http.MethodPost, "/sandboxes/"+j.w.name+"/move", fmt.Sprintf(`{"node":%q}`, j.f.ids[to]), nil); err != nil {
			return err
		}
		if err := j.went(ctx, disk, fmt.Sprintf("moved in %s", time.Since(start).Round(time.Millisecond))); err != nil {
			return err
		}
	}
	return nil
}

// bare has the node lose the memory of the sandbox, and nothing else. The memory comes from the
// bucket, and finds the volumes that are there.
func (j *journey) bare(ctx context.Context, disk string) error {
	if err := j.f.asleepInBucket(ctx, j.w.name, disk); err != nil {
		return err
	}
	at, killed := j.f.holder(j.w.name), time.Now()
	if err := j.f.killNode(at); err != nil {
		return err
	}
	checkpoints, _ := filepath.Glob(filepath.Join(j.f.data(at), "sandboxes", "*", "machine", "image*")) // the pattern is well formed
	for _, dir := range checkpoints {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := j.f.begin(at); err != nil {
		return err
	}
	if err := j.f.settle(ctx); err != nil {
		return err
	}
	if now := j.f.holder(j.w.name); now != at {
		return fmt.Errorf("the sandbox went from %s to %s", at, now)
	}
	if err := j.went(ctx, disk, "its memory was lost on its node"); err != nil {
		return err
	}
	if came := j.f.logged(at, "the memory of a sandbox is here", killed); len(came) != 1 {
		return fmt.Errorf("the memory did not come from the bucket: %v", came)
	}
	return nil
}

// loss kills the node. What was written after the last copy is lost, in memory and in the volume
// alike.
func (j *journey) loss(ctx context.Context, disk string) error {
	if err := j.f.asleepInBucket(ctx, j.w.name, disk); err != nil {
		return err
	}
	saved := j.last
	if err := j.add(ctx); err != nil {
		return err
	}
	had := j.f.holder(j.w.name)
	killed := time.Now()
	if err := j.f.killNode(had); err != nil {
		return err
	}
	err := until(ctx, lossTime, func() error {
		bounded, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		return j.agree(bounded)
	})
	if err != nil {
		return err
	}
	if j.last.Born != saved.Born || j.last.Memory < saved.Memory {
		return fmt.Errorf("after the loss of its node it is %+v, and was copied as %+v", j.last, saved)
	}
	j.say(fmt.Sprintf("%s is lost: %+v on %s, answered %s after the kill; copied as %+v", had, j.last, j.f.holder(j.w.name), time.Since(killed).Round(time.Millisecond), saved))
	if err := j.add(ctx); err != nil {
		return err
	}
	if err := j.f.begin(had); err != nil {
		return err
	}
	if err := j.f.settle(ctx); err != nil {
		return err
	}
	return j.agree(ctx)
}

// asleepInBucket waits until a sandbox sleeps and was copied as it is.
func (f *fleet) asleepInBucket(ctx context.Context, name, disk string) error {
	stamp := func(object string) string {
		found, _ := filepath.Glob(filepath.Join(f.dir, "objects", "checkpoints", object, "m", "*")) // the pattern is well formed
		if len(found) == 0 {
			return ""
		}
		return found[len(found)-1]
	}
	volume, machine := "volume-"+disk, f.has(f.holder(name))[name]
	volumeWas, machineWas := stamp(volume), stamp(machine)
	return until(ctx, lossTime, func() error {
		if now := stamp(volume); now == volumeWas || stamp(machine) == machineWas {
			return fmt.Errorf("%s is not in the bucket as it is: %s", name, now)
		}
		return nil
	})
}

// handOver gives the volume to other sandboxes on other nodes, the last time after the loss of the
// node that had it.
func (j *journey) handOver(ctx context.Context, disk string) error {
	lines := j.last.Volume
	for i, lost := range []bool{false, true} {
		had := j.f.holder(j.w.name)
		if err := j.f.post(ctx, http.MethodDelete, "/sandboxes/"+j.w.name, "", nil); err != nil {
			return err
		}
		start := time.Now()
		err := until(ctx, saveTime, func() error {
			found, _ := filepath.Glob(filepath.Join(j.f.data(had), "volumes", "images", disk+".saved")) // the pattern is well formed
			if len(found) == 0 {
				return errors.New("the volume is not saved")
			}
			return nil
		})
		if err != nil {
			return err
		}
		j.say(fmt.Sprintf("the volume is saved %s after its sandbox was deleted", time.Since(start).Round(time.Millisecond)))
		if lost {
			err = j.f.killNode(had)
		} else {
			err = j.f.ask(ctx, http.MethodPost, "/platform/nodes/"+j.f.ids[had]+"/cordon", nil)
		}
		if err != nil {
			return err
		}
		name := fmt.Sprintf("ledger-%d", i+2)
		start = time.Now()
		var w *witness
		err = until(ctx, lossTime, func() (err error) {
			w, err = j.f.ledger(ctx, name)
			return err
		})
		if err != nil {
			return err
		}
		c, err := j.f.count(ctx, w, "")
		if err != nil {
			return err
		}
		at := j.f.holder(name)
		if c.Volume != lines || at == had {
			return fmt.Errorf("the next sandbox, on %s after %s, finds %d lines of %d", at, had, c.Volume, lines)
		}
		j.say(fmt.Sprintf("the next sandbox is on %s after %s, and has the %d lines after %s", at, had, lines, time.Since(start).Round(time.Millisecond)))
		for range visitsEach {
			if c, err = j.f.count(ctx, w, "add"); err != nil {
				return err
			}
		}
		lines, j.w = c.Volume, w
		if !lost {
			if err := j.f.ask(ctx, http.MethodPost, "/platform/nodes/"+j.f.ids[had]+"/uncordon", nil); err != nil {
				return err
			}
		}
	}
	return nil
}
