package build_test

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/buildapi"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/fleettest"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// files is what tests upload: the fake builds by the names of Dockerfiles.
var files = planetest.Tar(map[string]string{
	"Dockerfile": "FROM doze/slim\nRUN echo built\n", fleettest.Broken: "FROM doze/slim\n\nRUN echo reason && exit 7\n", fleettest.Endless: "FROM doze/slim\nRUN sleep 1d\n",
})

// begin asks for a build by POST /builds, uploads the files, and returns its id.
func begin(p *planetest.Platform, body string, headers ...string) (id string) {
	p.T.Helper()
	return p.Upload(p.Offer("POST", "/builds", body, headers...), files)
}

func TestImageIsBuilt(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		putSecret := `{"metadata":{"name":"hub"},"data":{".dockerconfigjson":"{\"auths\":{\"hub.test/team\":{\"username\":\"a\",\"password\":\"b\"},\"hub.test\":{\"username\":\"me\",\"password\":\"word\"},\"https://index.docker.io/v1/\":{\"username\":\"d\",\"password\":\"e\"}}}"}}`
		planetest.Want[any](p, 200, "POST", "/secrets", putSecret)
		planetest.Want[any](p, 200, "POST", "/images", `{"name":"own-base:1","image":"hub.test/team/base:1"}`)
		made := planetest.Want[doze.Build](p, 200, "POST", "/builds",
			`{"name":"own-app:2","dockerfile":"Dockerfile","target":"run","args":{"A":"b"},"secrets":{"token":"hunter2"},"noCache":true}`)
		if made.Status != doze.BuildUploading || made.ResourceType != "image" || made.UploadURL == "" || made.CreatedBy != "admin" {
			t.Errorf("%+v", made)
		}
		// An image that is not there yet has the status of its build.
		if i := planetest.Want[doze.Image](p, 200, "GET", "/images/_/own-app", ""); i.Metadata.Status != doze.BuildUploading || len(i.Spec.Tags) != 0 {
			t.Errorf("%+v", i)
		}
		id := p.Upload(made.UploadURL, files)
		planetest.After(0)
		b := planetest.Want[doze.Build](p, 200, "GET", "/builds/"+id, "")
		if id != made.ID || b.Status != doze.BuildBuilt || b.Image != "sandbox/own-app:2" || b.Size == 0 || b.Digest == "" || b.StartedAt.IsZero() || b.EndedAt.IsZero() || b.UploadURL != "" {
			t.Errorf("%+v", b)
		}
		main := planetest.Want[doze.Workspace](p, 200, "GET", "/workspaces/main", "")
		base := fleet.Base{Ref: "hub.test/team/base@sha256:1", Login: &fleet.Login{Workspace: main.ID, Username: "a", Password: "b"}}
		want := fleet.BuildOrder{
			ID: id, Workspace: "main", WorkspaceID: main.ID, Dockerfile: "Dockerfile", Target: "run", Args: map[string]string{"A": "b"}, NoCache: true,
			Secrets: map[string]string{"token": "hunter2"}, Network: new(doze.Network),
			Logins: map[string]fleet.Login{
				"hub.test": {Workspace: main.ID, Username: "me", Password: "word"}, "docker.io": {Workspace: main.ID, Username: "d", Password: "e"},
			},
			Bases: map[string]fleet.Base{"own-base:1": base, "sandbox/own-base:1": base},
		}
		if diff := cmp.Diff([]fleet.BuildOrder{want}, p.Node.Builds()); diff != "" {
			t.Error(diff)
		}
		i := planetest.Want[doze.Image](p, 200, "GET", "/images/sandbox/own-app", "")
		if i.Metadata.Status != doze.ImageBuilt || len(i.Spec.Tags) != 1 || i.Spec.Tags[0].Name != "2" || !strings.HasPrefix(i.Spec.Tags[0].Image, "built/"+id+"@sha256:") {
			t.Errorf("%+v", i)
		}
		p.Create(`{"spec":{"runtime":{"image":"own-app:2"}}}`)
		if o := p.Node.Orders()[0]; o.Image != i.Spec.Tags[0].Image {
			t.Errorf("the sandbox has %s", o.Image)
		}
		if all := planetest.Want[[]doze.Build](p, 200, "GET", "/builds", ""); len(all) != 1 || all[0].ID != id {
			t.Errorf("%+v", all)
		}

		// Its secrets are nowhere.
		if raw, err := os.ReadFile(p.File); err != nil || strings.Contains(string(raw), "hunter2") {
			t.Errorf("the records have the secret, or %v", err)
		}
		lines := p.BuildLog(id)
		for i := 1; i < len(lines); i++ {
			if !lines[i].At.After(lines[i-1].At.Time) || lines[i].At.Truncate(time.Millisecond) != lines[i].At.Time {
				t.Errorf("line %d is of %s, the one before of %s", i, lines[i].At, lines[i-1].At)
			}
		}
		if last := lines[len(lines)-1]; last.Status != doze.BuildBuilt || last.Image != b.Image || lines[0].Name != "FROM doze/slim" {
			t.Errorf("%+v", lines)
		}

		// With the same name again, the tag moves, and what it meant is given up.
		planetest.After(time.Second)
		again := begin(p, `{"name":"own-app:2"}`)
		planetest.After(0)
		if i := planetest.Want[doze.Image](p, 200, "GET", "/images/sandbox/own-app", ""); len(i.Spec.Tags) != 1 || !strings.HasPrefix(i.Spec.Tags[0].Image, "built/"+again) {
			t.Errorf("%+v", i)
		}
		if all := p.Node.Released(); len(all) != 1 || !strings.HasPrefix(all[0], "built/"+id) {
			t.Errorf("the node may remove %v", all)
		}
		if o := p.Node.Builds()[1]; o.Bases["own-app:2"].Ref != i.Spec.Tags[0].Image {
			t.Errorf("the second build may begin with %+v", o.Bases)
		}
	})
}

// TestImagesByUpload: as bl push does it.
func TestImagesByUpload(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		address := p.Offer("POST", "/images?upload=true", `{"name":"own-app","resourceType":"sandbox","generation":"mk3"}`)
		status := func() string {
			return planetest.Want[doze.Image](p, 200, "GET", "/images/sandbox/own-app", "").Metadata.Status
		}
		if got := status(); got != doze.BuildUploading {
			t.Errorf("before the upload: %s", got)
		}
		hold := make(chan struct{})
		p.Node.OnBuild(func(fleet.BuildOrder) error { <-hold; return nil })
		p.Upload(address, files)
		planetest.After(0)
		if got := status(); got != doze.BuildBuilding {
			t.Errorf("after the upload: %s", got)
		}
		close(hold)
		planetest.After(0)
		if got := status(); got != doze.BuildBuilt {
			t.Errorf("in the end: %s", got)
		}

		// A failure is shown for a minute over what is there.
		p.Node.OnBuild(func(fleet.BuildOrder) error { return fleet.BuildFailed("no", fleet.BuildFailure{}) })
		p.Upload(p.Offer("POST", "/images?upload=true", `{"name":"own-app","resourceType":"sandbox"}`), files)
		planetest.After(0)
		if got := status(); got != doze.BuildFailed {
			t.Errorf("after a failure: %s", got)
		}
		planetest.After(time.Minute + time.Second)
		if got := status(); got != doze.BuildBuilt {
			t.Errorf("a minute later: %s", got)
		}
		// Where nothing is there, for as long as it is on record.
		p.Upload(p.Offer("POST", "/images?upload=true", `{"name":"own-b"}`), files)
		planetest.After(time.Hour)
		if i := planetest.Want[doze.Image](p, 200, "GET", "/images/_/own-b", ""); i.Metadata.Status != doze.BuildFailed {
			t.Errorf("%+v", i)
		}
		// A delete cancels.
		p.Node.OnBuild(nil)
		p.Offer("POST", "/images?upload=true", `{"name":"own-c"}`)
		planetest.Want[doze.Image](p, 200, "DELETE", "/images/sandbox/own-c", "")
		if all := planetest.Want[[]doze.Build](p, 200, "GET", "/builds", ""); all[0].Status != doze.BuildCancelled || all[0].Name != "own-c" {
			t.Errorf("%+v", all[0])
		}
		planetest.Want[any](p, 400, "POST", "/images?upload=true&skip-build=true", `{"name":"own-d"}`)
		planetest.Want[any](p, 400, "POST", "/images", `{"name":"own-d"}`)
	})
}

func TestFailure(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		id := begin(p, `{"name":"own-app","dockerfile":"`+fleettest.Broken+`"}`)
		planetest.After(0)
		b := planetest.Want[doze.Build](p, 200, "GET", "/builds/"+id, "")
		want := &doze.BuildFailure{Message: "step 2 failed", Step: 2, Line: 3, Command: "RUN echo reason && exit 7", Code: 7, Output: []string{"reason"}}
		if diff := cmp.Diff(want, b.Failure); b.Status != doze.BuildFailed || diff != "" {
			t.Errorf("%s %s", b.Status, diff)
		}
		lines := p.BuildLog(id)
		if last := lines[len(lines)-1]; last.Failure == nil || last.Status != doze.BuildFailed {
			t.Errorf("%+v", last)
		}
		log := planetest.Want[map[string]doze.Log](p, 200, "GET", "/observability/logs?resourceType=images&workloadIds=own-app,own-none&type=build", "")
		if text := log["own-app"].Lines; len(text) < 5 || text[0].Severity != doze.LogError || !strings.Contains(fmt.Sprint(text), "FAILED: step 2 failed (Dockerfile line 3: RUN echo reason && exit 7)") {
			t.Errorf("%+v", text)
		}
		if none, there := log["own-none"]; !there || len(none.Lines) != 0 {
			t.Errorf("a name without builds: %+v", log)
		}
		planetest.Want[any](p, 403, "GET", "/observability/logs?resourceType=images&workloadIds=own-app", "", planetest.As(p.KeyFor("main", time.Time{}, "sandboxes:get"))...)
		// What is ours is not told.
		p.Node.OnBuild(func(fleet.BuildOrder) error { return errors.New("the disk of the host is on fire") })
		id = begin(p, `{"name":"own-b"}`)
		planetest.After(0)
		if b := planetest.Want[doze.Build](p, 200, "GET", "/builds/"+id, ""); b.Status != doze.BuildFailed || strings.Contains(b.Failure.Message, "fire") {
			t.Errorf("%+v", b.Failure)
		}
	})
}

// bomb is a small zip of 3 GB in some files.
func bomb(tb testing.TB, entries int) string {
	tb.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for i := range entries {
		if _, err := w.CreateRaw(&zip.FileHeader{Name: strconv.Itoa(i), UncompressedSize64: 3 << 30 / uint64(entries)}); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.String()
}

func TestUploads(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		first := p.Offer("POST", "/builds", `{"name":"own-app"}`)
		put := func(status int, address, body, says string) {
			t.Helper()
			w := p.Do("PUT", p.Path(address), body, "Authorization", "")
			if w.Code != status || !strings.Contains(w.Body.String(), says) {
				t.Errorf("%s: %d %s, want %d %q", address, w.Code, w.Body, status, says)
			}
		}
		put(404, first+"x", files, "no such upload")
		put(404, strings.Replace(first, "/builds/", "/builds/x", 1), files, "no such upload")
		put(400, first, "echo no archive", "zip, tar or tar.gz")
		put(400, first, "", "zip, tar or tar.gz")
		put(400, first, string(make([]byte, 10240)), "the archive is empty")
		put(413, first, bomb(t, 1), fmt.Sprintf("the archive unpacks to %d MB, and the limit is %d MB", 3<<10, planetest.BuildDisk/2))
		put(413, first, "\x1f\x8b a gzip says it at its end"+"\x00\x00\x00\x80", "the archive unpacks to 2048 MB")
		put(413, first, bomb(t, buildapi.ContextFilesMax+1), "more than 200000 files")
		r := p.Do("PUT", p.Path(first), files, "Authorization", "", "Content-Length", "1")
		if r.Code != 200 {
			t.Errorf("after mistakes: %d %s", r.Code, r.Body)
		}
		planetest.After(0)
		put(409, first, files, "used already")

		// Another offer voids the address of the one before.
		planetest.After(time.Millisecond)
		second := p.Offer("POST", "/builds", `{"name":"own-app"}`)
		planetest.After(time.Millisecond)
		third := p.Offer("POST", "/builds", `{"name":"own-app"}`)
		put(409, second, files, "ask for another one")
		planetest.After(doze.BuildUploadTime - time.Second)
		if all := planetest.Want[[]doze.Build](p, 200, "GET", "/builds", ""); all[0].Status != doze.BuildUploading || all[1].Status != doze.BuildCancelled {
			t.Errorf("%+v", all)
		}
		planetest.After(2 * time.Second)
		put(409, third, files, "another one")
		b := planetest.Want[[]doze.Build](p, 200, "GET", "/builds", "")[0]
		if b.Status != doze.BuildFailed || !strings.Contains(b.Failure.Message, "within 15m") {
			t.Errorf("%+v", b)
		}

		// A workspace has no more than so many that have not ended.
		for i := range doze.BuildsWaitingMax {
			p.Offer("POST", "/builds", fmt.Sprintf(`{"name":"own-%d"}`, i))
		}
		if w := p.Do("POST", "/builds", `{"name":"own-more"}`); w.Code != 429 || !strings.Contains(w.Body.String(), "16 builds") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		for name, body := range map[string]string{
			"name must": `{"name":"A b"}`, "dockerfile is": `{"name":"own-a","dockerfile":"../x"}`, "args has the name": `{"name":"own-a","args":{"A B":"x"}}`,
			"secrets has the id": `{"name":"own-a","secrets":{"../x":"1"}}`,
		} {
			if w := p.Do("POST", "/builds", body); w.Code != 400 || !strings.Contains(w.Body.String(), name) {
				t.Errorf("%s: %d %s", body, w.Code, w.Body)
			}
		}
		planetest.Want[any](p, 409, "POST", "/builds", `{"name":"base"}`) // of the platform
	})
}

// TestFairOrder: builds wait for their turn, and workspaces have it one after the other.
func TestFairOrder(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Stop()
		p.Parallel = 1
		p.Open(true)
		planetest.Want[doze.Workspace](p, 200, "POST", "/workspaces", `{"name":"other"}`)
		in := []string{"X-Blaxel-Workspace", "other"}
		turn := make(chan string)
		p.Node.OnBuild(func(o fleet.BuildOrder) error { turn <- o.ID; return nil })
		var mine []string
		for i := range 3 {
			mine = append(mine, begin(p, fmt.Sprintf(`{"name":"own-%d"}`, i)))
			planetest.After(time.Second)
		}
		theirs := begin(p, `{"name":"own-0"}`, in...)
		planetest.After(time.Second)
		positions := []int{}
		for _, id := range mine {
			positions = append(positions, planetest.Want[doze.Build](p, 200, "GET", "/builds/"+id, "").Position)
		}
		positions = append(positions, planetest.Want[doze.Build](p, 200, "GET", "/builds/"+theirs, "", in...).Position)
		if diff := cmp.Diff([]int{0, 2, 3, 1}, positions); diff != "" {
			t.Error(diff)
		}
		if lines := p.BuildLog(mine[2]); len(lines) != 1 || lines[0].Text != "1 builds are before this one" {
			t.Errorf("%+v", lines)
		}
		var order []string
		for range 4 {
			order = append(order, <-turn)
			planetest.After(0)
		}
		if diff := cmp.Diff([]string{mine[0], theirs, mine[1], mine[2]}, order); diff != "" {
			t.Error(diff)
		}
	})
}

func TestCancel(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		id := begin(p, `{"name":"own-app","dockerfile":"`+fleettest.Endless+`"}`)
		planetest.After(time.Hour)
		if b := planetest.Want[doze.Build](p, 200, "GET", "/builds/"+id, ""); b.Status != doze.BuildBuilding || b.Position != 0 {
			t.Errorf("%+v", b)
		}
		if b := planetest.Want[doze.Build](p, 200, "DELETE", "/builds/"+id, ""); b.Status != doze.BuildCancelled || b.EndedAt.IsZero() {
			t.Errorf("%+v", b)
		}
		planetest.After(0)
		planetest.Want[any](p, 409, "DELETE", "/builds/"+id, "")
		if use, err := p.Node.Builders(t.Context()); err != nil || len(use) != 1 {
			t.Errorf("%+v, %v", use, err)
		} else {
			for _, one := range use {
				if one.Builds != 0 {
					t.Errorf("the node goes on: %+v", one)
				}
			}
		}
		lines := p.BuildLog(id)
		if last := lines[len(lines)-1]; last.Status != doze.BuildCancelled {
			t.Errorf("%+v", last)
		}
		if b := planetest.Want[doze.Build](p, 200, "GET", "/builds/"+begin(p, `{"name":"own-app"}`), ""); b.ID == id {
			t.Errorf("%+v", b)
		}
		planetest.Want[any](p, 404, "GET", "/builds/none", "")
		planetest.Want[any](p, 404, "GET", "/builds/"+id, "", planetest.As(p.KeyFor("other", time.Time{}, "admin"))...)
	})
}

// TestFollow: a reader of the log hears of each line at once, and of the end.
func TestFollow(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		id := begin(p, `{"name":"own-app","dockerfile":"`+fleettest.Endless+`"}`)
		planetest.After(0)
		var body atomic.Value
		done := make(chan struct{})
		go func() {
			defer close(done)
			body.Store(p.Do("GET", "/builds/"+id+"/logs?follow=true", "").Body.String())
		}()
		planetest.After(time.Minute)
		select {
		case <-done:
			t.Fatalf("it ended before the build: %s", body.Load())
		default:
		}
		planetest.Want[any](p, 200, "DELETE", "/builds/"+id, "")
		<-done
		lines := strings.Split(strings.TrimSpace(body.Load().(string)), "\n")
		alive := 0
		for _, line := range lines {
			if !strings.Contains(line, ",") {
				alive++
			}
		}
		if alive != 4 || !strings.Contains(lines[len(lines)-1], doze.BuildCancelled) || !strings.Contains(lines[0], "FROM doze/slim") {
			t.Errorf("%d of these say that it goes on:\n%s", alive, strings.Join(lines, "\n"))
		}
	})
}

// TestRestart: what a process began, the next one completes.
func TestRestart(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		offered := p.Offer("POST", "/builds", `{"name":"own-later"}`)
		hold := make(chan struct{})
		var asked atomic.Int32
		p.Node.OnBuild(func(fleet.BuildOrder) error {
			if asked.Add(1) == 1 {
				<-hold
				return fleet.ErrStopping
			}
			return nil
		})
		id := begin(p, `{"name":"own-app","secrets":{"s":"x"}}`)
		planetest.After(0)
		go close(hold)
		p.Reopen()
		planetest.After(time.Minute)
		b := planetest.Want[doze.Build](p, 200, "GET", "/builds/"+id, "")
		if n := asked.Load(); b.Status != doze.BuildBuilt || n != 2 {
			t.Errorf("after %d attempts: %+v", n, b)
		}
		if all := p.Node.Builds(); all[1].Secrets["s"] != "x" {
			t.Errorf("the second attempt has %+v", all[1])
		}
		p.Upload(offered, files)
		planetest.After(0)
		left, err := filepath.Glob(filepath.Join(p.Spool(), "*"))
		if err != nil || slices.ContainsFunc(left, func(name string) bool { return !strings.HasSuffix(name, ".log") }) || len(left) != 2 {
			t.Errorf("left are %v, %v", left, err)
		}
	})
}

// TestBuilderEnds: a builder that ends by itself is asked again, but not for ever.
func TestBuilderEnds(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		var asked atomic.Int32
		most := int32(1)
		p.Node.OnBuild(func(fleet.BuildOrder) error {
			if asked.Add(1) <= most {
				return doze.Errorf(doze.Unavailable, "the builder ended")
			}
			return nil
		})
		id := begin(p, `{"name":"own-app"}`)
		planetest.After(time.Minute)
		if b := planetest.Want[doze.Build](p, 200, "GET", "/builds/"+id, ""); b.Status != doze.BuildBuilt {
			t.Errorf("%+v", b)
		}
		most = 100
		id = begin(p, `{"name":"own-app"}`)
		planetest.After(time.Hour)
		if b := planetest.Want[doze.Build](p, 200, "GET", "/builds/"+id, ""); b.Status != doze.BuildFailed || !strings.Contains(b.Failure.Message, "the builder ended 3 times") {
			t.Errorf("%+v", b)
		}
	})
}

func TestNoBuilders(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(planetest.Named("own-a"))
	p.Node.Set("builders", doze.Errorf(doze.Unsupported, "there is no doze-builder"))
	for _, tt := range []struct{ method, path, body string }{
		{"POST", "/builds", `{"name":"own-b"}`},
		{"POST", "/images?upload=true", `{"name":"own-b"}`},
		{"POST", "/images", `{"name":"own-b"}`},
		{"POST", "/sandboxes?upload=true", planetest.Named("own-b")},
		{"PUT", "/sandboxes/own-a?upload=true", planetest.Named("own-a")},
	} {
		if w := p.Do(tt.method, tt.path, tt.body); w.Code != 501 || !strings.Contains(w.Body.String(), "builds no images") {
			t.Errorf("%s %s: %d %s", tt.method, tt.path, w.Code, w.Body)
		}
	}
	planetest.Want[any](p, 404, "GET", "/sandboxes/own-b", "")
}

// TestWorkspaceEnds: with a workspace go its builds, their files and its builder.
func TestWorkspaceEnds(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		planetest.Want[doze.Workspace](p, 200, "POST", "/workspaces", `{"name":"other"}`)
		in := []string{"X-Blaxel-Workspace", "other"}
		begin(p, `{"name":"own-app","dockerfile":"`+fleettest.Endless+`"}`, in...)
		planetest.After(time.Second)
		planetest.Want[doze.Workspace](p, 200, "DELETE", "/workspaces/other", "", in...)
		planetest.After(0)
		if use, err := p.Node.Builders(t.Context()); err != nil || len(use) != 0 {
			t.Errorf("%+v, %v", use, err)
		}
		if left, err := filepath.Glob(filepath.Join(p.Spool(), "*")); err != nil || len(left) != 0 {
			t.Errorf("left are %v, %v", left, err)
		}
	})
}
